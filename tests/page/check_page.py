#!/usr/bin/env python3
"""Opens the pages that ebb writes in a headless Chromium and uses them as a reader would.

    tests/page/check_page.py EBB [--keep DIR]

EBB is the built program. It makes a small study, profile and frontier; every chart must be there, pointing,
row switch, zoom and keyboard must work, and nothing may be logged as an error or fetched from anywhere. Ends
with 77, ctest's word for a skipped test, where no Chromium is installed. --keep leaves pages and pictures in a
folder to look at.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import browser

SIZES = "--workload gpt2 --layers 3 --width 32 --heads 2 --sequence 32 --vocabulary 300 --batch 4 --threads 1".split()
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

    def check_no_overflow(self, width):
        self.page.resize(width, 900)
        self.page.wait_for(f"document.documentElement.scrollWidth <= {width}", 3)
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
                place, kind, size = lines[:3]
                self.assertIn("" if place == "(outside modules)" else place, timeline["names"])
                self.assertRegex(size, r"^[\d.,]+ (B|KiB|MiB), [\d.]+% of the peak$")
                self.assertRegex(lines[3], r"^(stays from step to step|lives from instruction \d+ to \d+ of \d+)$")
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
        for width in (380, 800):
            self.check_no_overflow(width)


class Frontier(PageTest):
    kind = "frontier"

    def test_curve_and_plans(self):
        points = self.data["study"]["curves"][0]["points"]
        self.assertEqual(self.count(".frontier .curve circle"), len(points))
        self.assertEqual(self.count(".card"), len(points))
        self.check_timeline(self.data["study"]["rows"][0]["name"])
        left, top, width, height = self.page.box(".frontier .curve circle")
        self.page.move(left + width / 2, top + height / 2)
        self.assertIn("automatic plan", tip(self.page))


class Profile(PageTest):
    kind = "profile"

    def test_measured_times_beside_predictions(self):
        row = self.data["study"]["rows"][0]
        self.check_timeline(row["name"])
        measured = self.data["timelines"][row["name"]]["instructions"]["measured_ms"]
        self.assertEqual(len(measured), row["instructions"])
        self.assertIn("Measured", self.text("#time thead"))
        trace = json.loads((folder / "profile" / "trace.json").read_text())["traceEvents"]
        self.assertEqual(sum(event["ph"] == "X" for event in trace), row["instructions"])


def main():
    global program, folder
    parser = argparse.ArgumentParser()
    parser.add_argument("ebb")
    parser.add_argument("--keep")
    options, rest = parser.parse_known_args()
    if browser.find() is None:
        print("skipped: no Chromium is installed (apt-get install chromium)")
        sys.exit(77)
    program = options.ebb
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(options.keep or temporary)
        ebb("ablate", *SIZES, "--steps", "2", "--runs", "2", "--points", "4", "--out", str(folder / "ablation"))
        ebb("frontier", *SIZES, "--points", "4", "--out", str(folder / "frontier"))
        ebb("profile", *SIZES, "--out", str(folder / "profile"))
        unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
