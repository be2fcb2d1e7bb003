#!/usr/bin/env python3
"""Opens the pages that ebb writes in a headless Chromium and uses them as a reader would.

    tests/page/check_page.py EBB [--keep DIR]

EBB is the built program. It makes a small study, profile and frontier; every chart must be there, pointing,
row switch, zoom, search, comparing, keyboard and touch must work, contrasts must be those of WCAG AA in light and
dark, and nothing may be logged as an error or fetched from anywhere. Ends with 77, ctest's word for a skipped test, where no Chromium is installed. --keep leaves pages and pictures in a
folder to look at.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import browser
import contrast

SIZES = "--workload gpt2 --layers 3 --width 32 --heads 2 --sequence 32 --vocabulary 300 --batch 4 --threads 1".split()
SOURCE = re.compile(r"^[\w/.]+\.(cpp|h):\d+$")
ROOT = pathlib.Path(__file__).resolve().parents[2]
folder = None


def ebb(*arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{arguments}: {done.stderr}")


def embedded(page):
    return json.loads(page.evaluate("document.getElementById('data').textContent"))


def tip(page):
    return page.evaluate("document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText")


class PageTest(unittest.TestCase):
    kind = None

    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser().__enter__()
        cls.page = cls.browser.open(folder / cls.kind / "report.html")
        cls.data = embedded(cls.page)

    @classmethod
    def tearDownClass(cls):
        cls.page.screenshot(folder / f"{cls.kind}.png", whole=True)
        cls.browser.__exit__()

    def tearDown(self):
        self.assertEqual(self.page.errors, [])
        self.assertEqual([url for url in self.page.requests if not url.startswith("file:")], [])

    def count(self, selector):
        return self.page.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")

    def text(self, selector):
        return self.page.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")

    def texts(self, selector):
        return self.page.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((n) => n.textContent)")

    def pick(self, row):
        self.page.evaluate(f"""(() => {{ const s = document.getElementById('row'); s.value = {json.dumps(row)};
            s.dispatchEvent(new Event('change')); }})()""")

    # Parts every page with a timeline has.
    def check_timeline(self, name):
        timeline = self.data["timelines"][name]
        used = {timeline["categories"][c] for c, b in zip(timeline["buffers"]["category"], timeline["buffers"]["bytes"]) if b}
        drawn = set(self.page.evaluate("[...document.querySelectorAll('.timeline [data-category]')].map((n) => n.dataset.category)"))
        self.assertEqual(drawn, used)
        self.assertIn("peak", self.text(".peak text"))

    # Every text by WCAG AA, and every colour with a meaning at 3:1 on the page's ground.
    def check_contrast(self):
        for scheme in ("light", "dark"):
            self.page.prefer(scheme)
            texts = self.page.evaluate(contrast.TEXTS)
            self.assertGreater(len(texts), 40)
            for text in texts:
                self.assertGreaterEqual(contrast.contrast(text["colour"], text["ground"]), contrast.required(text), (scheme, text))
            palette = self.page.evaluate(contrast.PALETTE)
            ground = palette.pop("page")
            for name, colour in palette.items():
                self.assertGreaterEqual(round(contrast.contrast(colour, ground), 2), 3.0, (scheme, name))
            categories = ("weights", "optimizer", "inputs", "gradients", "activations", "workspace")
            for mark in ("phase-2", "phase-3", "store", "fetch"):
                for category in categories:
                    self.assertGreater(contrast.difference(palette[mark], palette[category]), 20, (scheme, mark, category))
        self.page.prefer("light")

    # Labels of axes and lanes may not lie over each other.
    def check_labels_apart(self, selector):
        boxes = self.page.evaluate(f"""[...document.querySelectorAll({json.dumps(selector)})].map((n) => {{
            const b = n.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom, n.textContent]; }})""")
        for i, a in enumerate(boxes):
            for b in boxes[i + 1:]:
                apart = a[2] <= b[0] + 1 or b[2] <= a[0] + 1 or a[3] <= b[1] + 3 or b[3] <= a[1] + 3
                self.assertTrue(apart, (selector, a, b))

    def check_no_overflow(self, width):
        self.page.resize(width, 900)
        self.page.wait_for(f"document.documentElement.scrollWidth <= {width}", 3)
        for selector in (".timeline text", ".frontier .axis text", ".losses text"):
            self.check_labels_apart(selector)
        self.page.resize(1280, 900)
        self.page.wait_for("document.querySelector('.timeline').getAttribute('width') > 900", 3)


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
        self.page.choose_file("#other-file", folder / "ablation" / "report.html")
        self.page.wait_for("document.querySelectorAll('.point-other').length > 0", 3)
        self.assertEqual(self.count(".frontier .point"), 2 * points)
        self.assertEqual(self.count(".curve-other path") > 0, True)
        self.assertEqual(self.count("#compare optgroup option"), len(self.rows))
        self.assertEqual(self.count(".timeline .over"), 1)
        # Results without timelines have points and losses.
        self.page.choose_file("#other-file", folder / "ablation" / "results.json")
        self.page.wait_for("document.querySelectorAll('.timeline .over').length === 0", 3)
        self.assertEqual(self.count(".frontier .point"), 2 * points)
        self.page.click("#other-remove")
        self.assertEqual(self.count(".frontier .point"), points)
        # What is no study is refused in words.
        self.page.choose_file("#other-file", folder / "ablation" / "results.csv")
        self.page.wait_for("document.querySelector('.other-title.wrong') !== null", 3)
        self.assertIn("results.csv is neither", self.text(".other-title"))
        self.assertEqual(self.count(".frontier .point"), points)

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
        self.page.screenshot(folder / "dark.png", whole=True)
        self.page.click(".masthead button")  # now light, whatever the system says
        self.assertEqual(self.page.evaluate(shade), light)
        self.page.click(".masthead button")
        self.page.click(".masthead button")
        self.page.prefer("light")

    def test_prints_and_fits_narrow_screens(self):
        self.page.print(folder / "printed.pdf")
        self.assertGreater((folder / "printed.pdf").stat().st_size, 20000)
        for width in (390, 500, 800):
            self.check_no_overflow(width)
        for width in (390, 500, 1400) if keep else ():
            for scheme in ("light", "dark"):
                self.page.prefer(scheme)
                self.page.resize(width, 900)
                self.page.screenshot(folder / f"ablation-{width}-{scheme}.png", whole=True)
        self.page.prefer("light")


class Frontier(PageTest):
    kind = "frontier"

    def test_curve_and_plans(self):
        points = self.data["study"]["curves"][0]["points"]
        self.assertEqual(self.count(".frontier .curve .dot"), len(points))
        self.assertEqual(self.count(".card"), len(points))
        self.check_timeline(self.data["study"]["rows"][0]["name"])
        left, top, width, height = self.page.box(".frontier .curve .dot")
        self.page.move(left + width / 2, top + height / 2)
        self.assertIn("automatic plan", tip(self.page))
        # A point of the curve is a row, by keyboard and finger too.
        self.page.evaluate("document.querySelectorAll('.curve-point')[1].focus()")
        self.page.press("Enter")
        self.page.wait_for(f"decodeURIComponent(location.hash.slice(1)) === {json.dumps(self.data['study']['rows'][1]['name'])}", 3)
        self.assertEqual(self.count(".timeline .budget"), 1)


class Tiers(PageTest):
    kind = "tiers"

    def test_bytes_of_tiers_and_copies(self):
        name = self.data["study"]["rows"][0]["name"]
        self.check_timeline(name)
        timeline = self.data["timelines"][name]
        self.assertEqual(self.texts(".timeline .tier ~ .axis .lane-name") or self.texts(".tier + .axis .lane-name"), ["disk"])
        for lane in ("kernels", "store", "fetch"):
            self.assertGreater(self.count(f".timeline [data-lane={lane}] rect"), 0, lane)
        left, top, width, height = self.page.box(".timeline [data-tier=disk]")
        self.page.move(left + width / 2, top + height - 4)
        self.assertRegex(tip(self.page), r"^disk: .* in use\nof .* held")
        left, top, width, height = self.page.box(".timeline [data-lane=fetch] rect")
        self.page.move(left + width / 2, top + height / 2)
        self.assertRegex(tip(self.page).split("\n")[1], r"^fetch, [\d.,]+ .*iB")
        self.page.click("#timeline [aria-label=Axis] button:nth-child(2)")
        self.assertGreater(self.count(".timeline [data-lane=store] rect"), 0)
        self.assertGreater(len(timeline["copies"]["bytes"]), 0)
        self.assertEqual(self.count(".timeline .budget"), 1)
        self.check_contrast()
        self.check_no_overflow(390)


class Profile(PageTest):
    kind = "profile"

    def test_measured_times_beside_predictions(self):
        row = self.data["study"]["rows"][0]
        self.check_timeline(row["name"])
        measured = self.data["timelines"][row["name"]]["instructions"]["measured_ms"]
        self.assertEqual(len(measured), row["instructions"])
        self.assertIn("Measured", self.text("#time thead"))
        self.assertIn("time of a step", self.text("#promise"))
        self.assertIn("predicted", self.text(".figures"))
        # On the axis of time, predicted kernels are beside the measured ones.
        self.page.click("#timeline [aria-label=Axis] button:nth-child(2)")
        self.assertEqual(self.texts(".timeline .lane-name"), ["measured", "predicted"])
        left, top, width, height = self.page.box(".timeline [data-lane=measured] rect")
        self.page.move(left + width / 2, top + height / 2)
        self.assertRegex(tip(self.page), r"measured, .* predicted")
        self.check_contrast()
        trace = json.loads((folder / "profile" / "trace.json").read_text())["traceEvents"]
        self.assertEqual(sum(event["ph"] == "X" for event in trace), row["instructions"])


def main():
    global program, folder, keep
    parser = argparse.ArgumentParser()
    parser.add_argument("ebb")
    parser.add_argument("--keep")
    options, rest = parser.parse_known_args()
    if browser.find() is None:
        print("skipped: no Chromium is installed (apt-get install chromium)")
        sys.exit(77)
    program, keep = options.ebb, options.keep
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(options.keep or temporary)
        ebb("ablate", *SIZES, "--steps", "2", "--runs", "2", "--points", "4", "--out", str(folder / "ablation"))
        ebb("frontier", *SIZES, "--points", "4", "--out", str(folder / "frontier"))
        ebb("profile", *SIZES, "--out", str(folder / "profile"))
        ebb("profile", *"--workload lm --layers 2 --width 128 --batch 16 --steps 3 --budget least --disk-budget 1GiB".split(),
            "--offload-folder", str(folder), "--out", str(folder / "tiers"))
        unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
