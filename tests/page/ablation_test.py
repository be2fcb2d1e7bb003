"""The page of `ebb ablate`, which has every part that pages of plans have."""
import json
import pathlib

from page_test import SOURCE, PageTest, made, tip

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Ablation(PageTest):
    kind = "ablation"

    def setUp(self):
        self.rows = [row for row in self.data["study"]["rows"] if "step_ms" in row]
        self.page.resize(1280, 900)

    def test_bars_are_sorted_as_asked(self):
        def shown():
            return self.page.evaluate("[...document.querySelectorAll('.bars tbody tr')].map((n) => n.dataset.row)")
        by_memory = sorted(self.rows, key=lambda row: row["planned_peak_bytes"])
        self.assertEqual([row["name"] for row in self.rows][0], "baseline")
        value = {row["name"]: row for row in self.rows}
        self.page.click("[data-sort=memory]")
        peaks = [value[name]["planned_peak_bytes"] for name in shown()]
        self.assertEqual(peaks, [row["planned_peak_bytes"] for row in by_memory])
        self.page.click("[data-sort=time]")
        times = [value[name]["step_ms"]["median"] for name in shown()]
        self.assertEqual(times, sorted(times))
        self.page.click("[data-sort=study]")
        self.assertEqual(shown(), [row["name"] for row in self.rows])
        self.assertEqual(self.count(".bars tbody tr .measured"), len(self.rows))
        self.assertEqual(self.count(".bars tbody tr rect.time"), len(self.rows))
        self.assertEqual(self.count(".bars tbody tr line.predicted"), len(self.rows))
        # The mark of the largest measured memory is at the bar's end, and not cut off there.
        self.assertEqual(self.page.evaluate("getComputedStyle(document.querySelector('.bars .bar svg')).overflow"), "visible")

    def test_pointing_tells_the_tensor(self):
        self.pick("baseline")
        self.check_timeline("baseline")
        timeline = self.data["timelines"]["baseline"]
        left, top, width, height = self.page.box(".timeline")
        seen = set()
        for y in range(int(height) - 60, 40, -8):
            self.page.move(left + width * 0.45, top + y)
            lines = tip(self.page).split("\n")
            if "alive" in lines[-1] and len(lines) > 3:
                if "predicted" in lines[-2]:
                    continue  # a kernel, under the memory
                lines = [line for line in lines if not SOURCE.search(line)]
                # Workspaces have no type.
                (place, *_, kind, size, life), rest = ([*lines[:2], *lines[2:5]], lines[5:]) if "of the peak" in lines[3] else (lines[:4], lines[4:])
                self.assertIn("" if place == "(top level)" else place, timeline["names"])
                self.assertRegex(size, r"^[\d.,]+ (B|KiB|MiB), [\d.]+% of the peak$")
                self.assertRegex(life, r"^(stays from step to step|lives from instruction \d+ to \d+ of \d+)$")
                self.assertEqual(self.count(".mark .tensor"), 1)
                seen.add(kind.split(",")[0])
        self.assertLessEqual({"weights", "optimizer state", "activations"}, seen)
        self.page.move(5, 5)
        self.assertEqual(tip(self.page), "")

    def test_rows_can_be_switched_in_every_way(self):
        def row():
            return self.page.evaluate("decodeURIComponent(location.hash.slice(1))")
        names = [r["name"] for r in self.rows]
        self.pick("all")
        self.assertEqual(row(), "all")
        self.check_timeline("all")
        whole = self.page.evaluate("document.querySelector('.timeline path[data-category=weights]').getAttribute('d')")
        self.page.click(".card[data-row=baseline]")
        self.page.wait_for("decodeURIComponent(location.hash) === '#baseline'")
        self.assertNotEqual(whole, self.page.evaluate("document.querySelector('.timeline path[data-category=weights]').getAttribute('d')"))
        self.page.evaluate("document.querySelector('.timeline').focus()")
        self.page.press("]")
        self.assertEqual(row(), names[1])
        self.page.press("[")
        self.page.press("[")
        self.assertEqual(row(), names[-1])
        self.page.click('.bars tr[data-row="accumulate"] .row-name')
        self.assertEqual(row(), "accumulate")
        self.assertEqual(self.page.evaluate("document.getElementById('row').value"), "accumulate")
        self.page.evaluate("document.querySelector('.point[data-row=blocks]').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))")
        self.assertEqual(row(), "blocks")

    def test_zoom_by_dragging_and_back(self):
        self.pick("baseline")
        whole = self.texts(".timeline .axis text")
        left, top, width, height = self.page.box(".timeline")
        self.page.drag(left + width * 0.3, left + width * 0.5, top + height / 2)
        near = self.texts(".timeline .axis text")
        self.assertNotEqual(near, whole)
        self.page.evaluate("document.querySelector('.timeline').focus()")
        self.page.press("0")
        self.assertEqual(self.texts(".timeline .axis text"), whole)

    def test_the_keyboard_moves_the_cursor(self):
        self.pick("baseline")
        self.page.box(".timeline")
        self.page.evaluate("document.querySelector('.timeline').focus()")
        self.page.press("p")
        peak = self.data["timelines"]["baseline"]["peak_instruction"]
        self.assertIn(f"instruction {peak}:", tip(self.page))
        self.page.press("ArrowRight")
        self.assertIn(f"instruction {peak + 1}:", tip(self.page))
        self.page.press("k")
        self.assertIn("predicted", tip(self.page))
        self.page.press("ArrowLeft")
        before = tip(self.page)
        self.page.press("ArrowDown")
        self.assertNotEqual(tip(self.page), before)
        self.page.press("Escape")
        self.assertEqual(tip(self.page), "")

    def test_other_views_of_the_same_step(self):
        self.pick("baseline")
        self.page.click("#timeline .segmented button:nth-child(2)")  # places in the arena
        arena = sum(1 for offset in self.data["timelines"]["baseline"]["buffers"]["offset"] if offset >= 0)
        self.assertGreater(self.count(".timeline .buffer"), arena / 4)
        self.page.click("#timeline [aria-label=Axis] button:nth-child(2)")
        self.assertTrue(any(text.endswith(" ms") for text in self.texts(".timeline .axis text")))
        self.page.click("#timeline [aria-label=Axis] button:nth-child(1)")
        self.page.click("#timeline .segmented button:nth-child(1)")
        self.assertEqual(self.count(".timeline .buffer"), 0)

    def test_frontier_has_every_row_and_readable_labels(self):
        self.assertEqual(self.count(".frontier .point"), len(self.rows))
        self.assertEqual(self.count(".frontier .curve path"), len(self.data["study"]["curves"]))
        self.assertEqual(len(self.data["study"]["curves"]), 2)
        overlaps = self.page.evaluate("""(() => {
            const boxes = [...document.querySelectorAll('.point-label text')].map((n) => n.getBoundingClientRect());
            let count = 0;
            boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
                if (a.left < b.right - 2 && b.left < a.right - 2 && a.top + 3 < b.bottom && b.top + 3 < a.bottom) ++count;
            }));
            return count;
        })()""")
        self.assertEqual(overlaps, 0)
        left, top, width, height = self.page.box(".point[data-row=all]")
        self.page.move(left + width / 2, top + height / 2)
        self.assertIn("all\npeak", tip(self.page))

    def test_error_bars_marks_and_budget(self):
        spread = [row for row in self.rows if row["step_ms"]["high"] > row["step_ms"]["low"]]
        self.assertEqual(self.count(".frontier .error-bar"), len(spread))
        legend = " ".join(self.texts(".mark-legend li"))
        for name in ("baseline", "one technique", "several techniques", "everything together", "fastest to slowest run", "budget"):
            self.assertIn(name, legend)
        self.pick("auto")
        self.assertEqual(self.count(".frontier .budget"), 1)
        self.assertEqual(self.count(".timeline .budget"), 1)
        self.assertIn("budget", self.text("#timeline .legend"))
        self.pick("baseline")
        self.assertEqual(self.count(".timeline .budget"), 0)

    def test_no_claim_from_two_steps(self):
        self.assertEqual(self.data["study"]["settings"]["steps"], 2)
        self.assertIn("too few", self.text(".figures"))
        self.assertNotIn("its time", self.text(".figures"))
        self.assertIn("rough", self.text("#bars .lead"))
        self.assertEqual(set(self.texts(".bars .same")), {""})

    def test_a_tensor_is_found(self):
        self.pick("baseline")
        self.page.type("#find", "logits")
        self.assertGreater(self.count("#found button"), 0)
        self.assertIn("logits", self.text("#found button"))
        self.page.click("#found button")
        self.page.wait_for("!document.getElementById('tip').hidden", 3)
        self.assertIn("logits", tip(self.page))
        self.assertEqual(self.count(".mark .tensor"), 1)
        # By keyboard: Enter takes the largest, the arrow goes into the list, Escape ends it.
        self.page.type("#find", "h.1 mlp")
        self.page.press("Enter")
        self.assertIn("h.1.mlp", tip(self.page))
        self.page.evaluate("document.getElementById('find').focus()")
        self.page.press("ArrowDown")
        self.assertTrue(self.page.evaluate("document.activeElement.matches('#found button')"))
        self.page.evaluate("document.getElementById('find').focus()")
        self.page.press("Escape")
        self.assertEqual(self.count("#found button"), 0)
        self.assertEqual(self.count(".found-tensor"), 0)
        self.page.type("#find", "no such thing")
        self.assertIn("none", self.text(".search [role=status]"))
        self.page.evaluate("document.getElementById('find').focus()")
        self.page.press("Escape")

    # The line of a module is that of its at("name"), and finds all of its tensors.
    def test_a_tensor_is_found_by_its_source_line(self):
        self.pick("baseline")
        sources = self.data["timelines"]["baseline"]["sources"]
        line = sources["transformer.h.1.mlp.c_fc"]
        self.assertRegex(line, SOURCE)
        name, number = line.split(":")
        lines = (ROOT / "src/models" / pathlib.Path(name).name).read_text().splitlines()
        self.assertIn('at("c_fc")', lines[int(number) - 1])
        self.page.type("#find", line)
        found = self.texts("#found .found-name")
        self.assertGreater(len(found), 2)
        self.assertTrue(all(".mlp.c_fc" in each and line in each for each in found), found)
        self.page.click("#found li:nth-child(2) button")  # by mouse
        self.page.wait_for("!document.getElementById('tip').hidden", 3)
        self.assertEqual(tip(self.page).split("\n")[1], line)
        self.page.evaluate("document.getElementById('find').focus()")
        self.page.press("Enter")  # by keyboard
        self.assertEqual(tip(self.page).split("\n")[1], line)
        self.page.evaluate("document.querySelector('.timeline').focus()")
        self.page.press("k")  # a kernel
        self.assertRegex(tip(self.page).split("\n")[1], SOURCE)
        self.page.resize(390, 844)
        self.page.wait_for("document.querySelector('.timeline').getAttribute('width') < 390", 3)
        self.page.touch("#found li:nth-child(1) button")  # by touch
        self.page.wait_for("!document.getElementById('tip').hidden", 3)
        self.assertIn(line, tip(self.page))
        self.assertLessEqual(self.page.evaluate("document.documentElement.scrollWidth"), 390)
        self.page.evaluate("document.getElementById('find').focus()")
        self.page.press("Escape")
        self.page.resize(1280, 900)

    def test_two_rows_over_each_other(self):
        self.pick("all")
        self.assertEqual(self.count(".timeline .over"), 0)
        self.page.evaluate("(() => { const s = document.getElementById('compare'); s.value = 'baseline'; s.dispatchEvent(new Event('change')); })()")
        self.assertEqual(self.count(".timeline .over"), 1)
        self.assertIn("baseline", self.text("#compared"))
        self.assertEqual(self.texts(".losses + *, #losses .strip-key span")[0], "all")
        row = {r["name"]: r for r in self.rows}
        ratio = f"{row['all']['planned_peak_bytes'] / row['baseline']['planned_peak_bytes']:.2f}×"
        self.assertIn(ratio, self.text("#compared tbody tr"))
        self.page.click("#timeline [aria-label=Axis] button:nth-child(2)")
        self.assertEqual(self.count(".timeline .over"), 1)
        self.page.click("#timeline [aria-label=Axis] button:nth-child(1)")
        self.page.evaluate("(() => { const s = document.getElementById('compare'); s.value = ''; s.dispatchEvent(new Event('change')); })()")
        self.assertEqual(self.count(".timeline .over"), 0)

    def test_another_study_over_this_one(self):
        self.pick("baseline")
        points = self.count(".frontier .point")
        self.page.choose_file("#other-file", made.folder / "ablation" / "report.html")
        self.page.wait_for("document.querySelectorAll('.point-other').length > 0", 3)
        self.assertEqual(self.count(".frontier .point"), 2 * points)
        self.assertEqual(self.count(".curve-other path") > 0, True)
        self.assertEqual(self.count("#compare optgroup option"), len(self.rows))
        self.assertEqual(self.count(".timeline .over"), 1)
        # Results without timelines have points and losses.
        self.page.choose_file("#other-file", made.folder / "ablation" / "results.json")
        self.page.wait_for("document.querySelectorAll('.timeline .over').length === 0", 3)
        self.assertEqual(self.count(".frontier .point"), 2 * points)
        self.page.click("#other-remove")
        self.assertEqual(self.count(".frontier .point"), points)
        # A file that is not a study is refused with a message.
        self.page.choose_file("#other-file", made.folder / "ablation" / "results.csv")
        self.page.wait_for("document.querySelector('.other-title.wrong') !== null", 3)
        self.assertIn("results.csv is neither", self.text(".other-title"))
        self.assertEqual(self.count(".frontier .point"), points)

    # The buttons around another study, and both lists of rows, by mouse, keyboard and finger.
    def test_controls_of_comparing(self):
        self.pick("baseline")
        for use in (self.page.click, self.page.press_on, self.page.touch):
            self.page.answer_chooser(use, "#other-open", made.folder / "ablation" / "report.html")
            self.page.wait_for("document.querySelectorAll('.point-other').length > 0", 3)
            use("#other-remove")
            self.page.wait_for("document.querySelectorAll('.point-other').length === 0", 3)
        names = [r["name"] for r in self.rows]
        self.page.press_on("#row", "ArrowDown")
        self.page.wait_for(f"decodeURIComponent(location.hash.slice(1)) === {json.dumps(names[1])}", 3)
        self.page.press_on("#compare", "ArrowDown")
        self.page.wait_for("document.querySelectorAll('.timeline .over').length === 1", 3)
        self.page.press_on("#compare", "ArrowUp")
        self.page.wait_for("document.querySelectorAll('.timeline .over').length === 0", 3)

    def test_losses(self):
        self.pick("blocks")
        lines = [row for row in self.rows if len(row["losses"]) > 1]
        self.assertEqual(self.count(".losses .loss"), len(lines))
        self.assertEqual(self.count(".losses .loss.chosen"), 1)
        self.page.box(".losses")
        self.page.move(5, 5)
        self.page.evaluate("document.querySelector('.losses').focus()")
        self.page.press("ArrowRight")
        self.assertIn("step 1\n", tip(self.page))
        self.page.press("End")
        value = next(row for row in self.rows if row["name"] == "blocks")["losses"][-1]
        self.assertIn(f"blocks: {value:.6g}"[:14], tip(self.page))
        self.page.press("Escape")
        self.assertEqual(tip(self.page), "")
        self.page.touch(".losses")
        self.assertIn("step", tip(self.page))
        left, top, width, height = self.page.box(".losses")
        self.page.move(left + width - 20, top + height / 2)
        self.assertIn(f"step {len(lines[0]['losses'])}\n", tip(self.page))
        self.page.move(5, 5)
        self.assertEqual(tip(self.page), "")

    def test_touch(self):
        self.pick("baseline")
        self.page.resize(390, 844)
        self.page.wait_for("document.querySelector('.timeline').getAttribute('width') < 390", 3)
        self.page.touch(".timeline", 0.5, 0.5)
        self.assertIn("of the peak", tip(self.page))
        self.page.touch(".timeline [data-lane=kernels] rect:nth-child(3)")
        self.assertIn("predicted", tip(self.page))
        self.page.touch(".point[data-row=all]")
        self.page.wait_for("decodeURIComponent(location.hash) === '#all'", 3)
        self.page.touch("#timeline h2")
        self.assertEqual(tip(self.page), "")
        self.page.resize(1280, 900)

    def test_kernels_share_the_axis(self):
        self.pick("baseline")
        left, top, width, height = self.page.box(".timeline [data-lane=kernels] rect")
        self.page.move(left + width / 2, top + height / 2)
        self.assertIn("instruction 0;", tip(self.page))
        self.assertIn("predicted", tip(self.page))
        whole = self.count(".timeline .kernel")
        self.page.evaluate("document.querySelector('.timeline').focus()")
        self.page.press("+")
        self.assertLess(self.count(".timeline .kernel"), whole)
        self.page.press("0")

    def test_contrast(self):
        self.pick("auto")
        self.check_contrast()

    def test_decisions_are_those_of_the_row(self):
        self.pick("baseline")
        self.assertIn("Nothing is computed again", self.text("#decisions"))
        self.pick("blocks")
        decisions = self.data["timelines"]["blocks"]["decisions"]
        self.assertEqual(self.count("#decisions tbody tr"), min(12, len(decisions)))
        self.assertIn(decisions[0]["path"], self.text("#decisions tbody tr"))
        self.assertIn("equal", self.text("#promise"))

    def test_machine_and_command(self):
        facts = self.data["study"]["facts"]
        self.assertEqual(self.text(".command"), facts["command"])
        self.assertIn(facts["device"], self.text("#made"))

    def test_dark_and_light(self):
        shade = "getComputedStyle(document.body).backgroundColor"
        self.page.prefer("light")
        light = self.page.evaluate(shade)
        self.page.prefer("dark")
        self.assertNotEqual(self.page.evaluate(shade), light)
        self.page.screenshot(made.folder / "dark.png", whole=True)
        self.page.click(".masthead button")  # now light, whatever the system says
        self.assertEqual(self.page.evaluate(shade), light)
        self.page.click(".masthead button")
        self.page.click(".masthead button")
        self.page.prefer("light")

    def test_prints_and_fits_narrow_screens(self):
        self.page.print(made.folder / "printed.pdf")
        self.assertGreater((made.folder / "printed.pdf").stat().st_size, 20000)
        for width in (390, 500, 800):
            self.check_no_overflow(width)
        self.pictures()

    # Every button does the same by mouse, keyboard and finger: (button, what it changes, button that undoes it).
    def test_buttons_by_mouse_keyboard_and_touch(self):
        self.pick("baseline")
        zoom, view, axis = (f"#timeline [aria-label={name}] button:nth-child" for name in ("Zoom", "View", "Axis"))
        ticks = "[...document.querySelectorAll('.timeline .axis text')].map((n) => n.textContent).join()"
        theme = "document.querySelector('.masthead button').textContent"
        folded = "document.querySelector('#tensors .quiet').textContent"
        # All rows: the first of the study may well be the fastest.
        order = "[...document.querySelectorAll('.bars tbody tr')].map((n) => n.dataset.row).join()"
        buttons = [(f"{zoom}(1)", ticks, f"{zoom}(3)"), (f"{view}(2)", "document.querySelectorAll('.timeline .buffer').length", f"{view}(1)"),
                   (f"{axis}(2)", ticks, f"{axis}(1)"), ("[data-sort=time]", order, "[data-sort=study]"),
                   (".card[data-row=auto]", "location.hash", ".card[data-row=baseline]"), ("#tensors .quiet", folded, "#tensors .quiet")]

        def by_keyboard(selector):
            self.page.evaluate(f"document.querySelector('{selector}').focus()")
            self.page.press(" ")
        self.page.click("[data-sort=study]")
        for use in (self.page.click, by_keyboard, self.page.touch):
            for button, state, undo in buttons:
                before = self.page.evaluate(state)
                use(button)
                self.page.wait_for(f"({state}) !== {json.dumps(before)}", 3)
                use(undo)
                self.page.wait_for(f"({state}) === {json.dumps(before)}", 3)
            before = self.page.evaluate(theme)
            for _ in range(3):  # auto, light, dark
                use(".masthead button")
            self.page.wait_for(f"({theme}) === {json.dumps(before)}", 3)
            # Zoom out is the way back from zoom in.
            whole = self.page.evaluate(ticks)
            use(f"{zoom}(1)")
            use(f"{zoom}(2)")
            self.page.wait_for(f"({ticks}) === {json.dumps(whole)}", 3)
