"""The pages of training runs: the summary that `ebb train --log` leaves, and `ebb compare --page`."""
from page_test import PageTest, ebb, made, tip


def make_runs():
    sizes = "--workload gpt2 --layers 1 --width 16 --heads 2 --sequence 16 --vocabulary 64 --batch 4 --threads 1 --eval-batches 1".split()
    for name, more in (("one", ["--budget", "1MiB"]), ("two", ["--lr", "0.01"])):
        ebb("train", *sizes, "--steps", "40", "--eval-every", "10", *more, "--log", str(made.folder / "runs" / name))
    reweight = "--workload reweight --hidden 8 --batch 20 --meta 100 --threads 1 --eval-batches 4 --steps 20".split()
    for name, more in (("weighted", []), ("baseline", ["--unweighted"])):
        ebb("train", *reweight, *more, "--log", str(made.folder / "runs" / name))
    for name, compared in (("compared", ("one", "two")), ("levels", ("weighted", "baseline"))):
        (made.folder / name).mkdir()
        ebb("compare", *(str(made.folder / "runs" / run) for run in compared), "--page", str(made.folder / name / "report.html"))
    (made.folder / "summary").mkdir()
    (made.folder / "summary" / "report.html").write_bytes((made.folder / "runs" / "one" / "summary.html").read_bytes())


class Runs(PageTest):
    """The page of several runs, which `ebb compare --page` writes."""
    kind = "compared"

    def setUp(self):
        self.page.resize(1280, 900)

    def curves(self, section):
        return self.count(f"#{section} .run-curve path")

    def test_every_curve_is_there(self):
        runs = self.data["runs"]
        self.assertEqual([run["name"].split("/")[-1] for run in runs], ["one", "two"])
        self.assertEqual(self.curves("loss"), 4)  # training and tests
        self.assertEqual(self.count("#loss .test circle"), sum(len(run["curves"]["test_loss"]["steps"]) for run in runs))
        for section in ("rate", "time"):
            self.assertEqual(self.curves(section), 2)
        self.assertIn("--lr", self.text("#table tbody"))
        self.assertEqual(self.count("#memory .run-memory"), 2)
        self.assertEqual(self.count("#memory .run-memory .budget"), 1)
        self.assertIn("ebb train", self.text(".command"))

    def test_values_are_told_by_mouse_keyboard_and_touch(self):
        run = self.data["runs"][0]
        left, top, width, height = self.page.box("#loss .run-chart")
        self.page.move(left + 63, top + height / 2)
        self.assertTrue(tip(self.page).startswith("step 1\n"), tip(self.page))
        self.assertIn(f"{run['curves']['loss']['values'][0]:.6g}"[:6], tip(self.page))
        self.assertEqual(self.count("#loss .cursor-point"), 2)
        self.page.move(5, 5)
        self.assertEqual(tip(self.page), "")
        self.page.evaluate("document.querySelector('#loss .run-chart').focus()")
        self.page.press("End")
        self.assertTrue(tip(self.page).startswith(f"step {run['curves']['loss']['steps'][-1]}\n"), tip(self.page))
        self.assertIn(f"{run['curves']['loss']['values'][-1]:.6g}"[:6], tip(self.page))
        self.page.press("ArrowLeft")
        self.assertIn(f"step {run['curves']['loss']['steps'][-2]}\n", tip(self.page))
        self.page.press("Escape")
        self.assertEqual(tip(self.page), "")
        self.page.touch("#loss .run-chart")
        self.assertIn("step", tip(self.page))
        self.page.touch("h1")
        self.assertEqual(tip(self.page), "")

    def test_runs_can_be_hidden(self):
        name = ".run-toggle:nth-child(2)"
        self.page.click(name)  # by mouse
        self.assertEqual(self.curves("loss"), 2)
        self.assertEqual(self.page.evaluate(f"document.querySelector('{name}').getAttribute('aria-pressed')"), "false")
        self.page.evaluate(f"document.querySelector('{name}').focus()")
        self.page.press(" ")  # by keyboard
        self.assertEqual(self.curves("loss"), 4)
        for k in (1, 2):  # by finger, both
            self.page.touch(f".run-toggle:nth-child({k})")
        self.page.wait_for("document.querySelectorAll('#loss .run-curve').length === 0", 3)
        self.assertIn("no run is shown", self.text("#loss .run-chart"))
        for k in (1, 2):
            self.page.touch(f".run-toggle:nth-child({k})")
        self.page.wait_for("document.querySelectorAll('#loss .run-curve').length === 4", 3)

    def test_axes(self):
        def axis():
            return self.texts("#loss .axis text")
        steps = axis()
        for use in (self.page.click, self.page.touch):
            use(".run-controls [aria-label=Axis] button:nth-child(2)")
            self.page.wait_for("document.querySelector('#loss .axis-title').textContent === 'time in steps'", 3)
            self.assertTrue(any(text.endswith(" s") for text in axis()))
            use(".run-controls [aria-label=Axis] button:nth-child(1)")
            self.page.wait_for("document.querySelector('#loss .axis-title').textContent === 'step'", 3)
        path = "document.querySelector('#loss .run-curve path').getAttribute('d')"
        straight, rate = self.page.evaluate(path), self.page.evaluate(path.replace("#loss", "#rate"))
        self.page.evaluate("document.querySelector('.run-controls [aria-label=Losses] button:nth-child(2)').focus()")
        self.page.press(" ")
        self.assertNotEqual(self.page.evaluate(path), straight)
        self.assertEqual(self.page.evaluate(path.replace("#loss", "#rate")), rate)
        self.page.click(".run-controls [aria-label=Losses] button:nth-child(1)")
        self.assertEqual(axis(), steps)

    def test_contrast(self):
        self.check_contrast()

    def test_narrow_screens(self):
        for width in (390, 500, 800):
            self.page.resize(width, 900)
            self.page.wait_for(f"document.documentElement.scrollWidth <= {width}", 3)
            self.page.wait_for(f"document.querySelector('.run-chart').getAttribute('width') < {width}", 3)
            for chart in self.page.evaluate("[...document.querySelectorAll('section:has(.run-chart)')].map((n) => n.id)"):
                self.check_labels_apart(f"#{chart} .run-chart text")
                for anchor in ("end", "middle"):  # of values and of places
                    labels = self.texts(f"#{chart} .axis text[text-anchor={anchor}]:not(.axis-title)")
                    self.assertGreaterEqual(len(labels), 3, (width, chart, labels))
        self.pictures()


class Run(Runs):
    """The summary of one run."""
    kind = "summary"

    def test_every_curve_is_there(self):
        self.assertEqual(self.curves("loss"), 2)
        self.assertEqual(self.count(".run-toggle"), 0)
        self.assertEqual(len(self.texts(".figure-label")), len(self.data["runs"][0]["figures"]) + 1)  # the peak
        self.assertIn("test loss", self.texts(".figure-label"))

    test_values_are_told_by_mouse_keyboard_and_touch = test_runs_can_be_hidden = None


class Levels(Runs):
    """Two levels beside their baseline: classes and levels have charts of their own."""
    kind = "levels"

    def test_every_curve_is_there(self):
        self.assertEqual(self.curves("classes"), 2)
        self.assertEqual(self.curves("alike"), 2)
        self.assertEqual(self.count("#classes circle"), 20)
        self.assertIn("Loss of the level reweight", self.texts("h2"))
        self.assertIn("Learning rate of the level reweight", self.texts("h2"))
        self.assertEqual(self.count("#memory .run-memory rect.time"), 0)  # by category
        self.assertIn("--unweighted", self.text("#table tbody"))
        self.page.evaluate("document.querySelector('#classes .run-chart').focus()")
        self.page.press("Home")
        self.assertTrue(tip(self.page).startswith("class 0\n"), tip(self.page))
        self.page.press("Escape")

    test_values_are_told_by_mouse_keyboard_and_touch = test_runs_can_be_hidden = None
