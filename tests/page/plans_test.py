"""The pages of `ebb frontier` and `ebb profile`."""
import json

from page_test import SOURCE, PageTest, made, tip


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
        for k, use in ((1, self.page.click), (2, self.page.touch)):
            use(f".curve-point:nth-child({k + 1})")  # after the line
            self.page.wait_for(f"decodeURIComponent(location.hash.slice(1)) === {json.dumps(self.data['study']['rows'][k - 1]['name'])}", 3)
        self.check_contrast()
        for width in (390, 500):
            self.check_no_overflow(width)
        self.pictures()


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
        kind = next(line for line in tip(self.page).split("\n")[1:] if not SOURCE.search(line))
        self.assertRegex(kind, r"^fetch, [\d.,]+ .*iB")
        self.page.click("#timeline [aria-label=Axis] button:nth-child(2)")
        self.assertGreater(self.count(".timeline [data-lane=store] rect"), 0)
        self.assertGreater(len(timeline["copies"]["bytes"]), 0)
        self.assertEqual(self.count(".timeline .budget"), 1)
        self.check_contrast()
        self.check_no_overflow(390)
        self.pictures()


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
        for width in (390, 500):
            self.check_no_overflow(width)
        self.pictures()
        trace = json.loads((made.folder / "profile" / "trace.json").read_text())["traceEvents"]
        self.assertEqual(sum(event["ph"] == "X" for event in trace), row["instructions"])
