"""Shared by all tests of pages: the pages that were made, and a page in a browser."""
import json
import re
import subprocess
import types
import unittest

import browser
import contrast

SOURCE = re.compile(r"^[\w/.]+\.(cpp|h):\d+$")
made = types.SimpleNamespace(program=None, folder=None, keep=None)  # set by check_page.py


def ebb(*arguments):
    done = subprocess.run([made.program, *arguments], capture_output=True, text=True)
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
        cls.page = cls.browser.open(made.folder / cls.kind / "report.html")
        cls.data = embedded(cls.page)

    @classmethod
    def tearDownClass(cls):
        cls.page.screenshot(made.folder / f"{cls.kind}.png", whole=True)
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

    # With --keep: the page as it is now, in both schemes and at three widths.
    def pictures(self):
        for width in (390, 500, 1400) if made.keep else ():
            for scheme in ("light", "dark"):
                self.page.prefer(scheme)
                self.page.resize(width, 900)
                self.page.evaluate("new Promise((done) => setTimeout(done, 200))")
                self.page.screenshot(made.folder / f"{self.kind}-{width}-{scheme}.png", whole=True)
        self.page.prefer("light")
        self.page.resize(1280, 900)

    def check_no_overflow(self, width):
        self.page.resize(width, 900)
        self.page.wait_for(f"document.documentElement.scrollWidth <= {width}", 3)
        for selector in (".timeline text", ".frontier .axis text", ".losses text"):
            self.check_labels_apart(selector)
        self.page.resize(1280, 900)
        self.page.wait_for("document.querySelector('.timeline').getAttribute('width') > 900", 3)
