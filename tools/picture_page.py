#!/usr/bin/env python3
"""Takes a picture of a page that ebb wrote, with Chromium.

  tools/picture_page.py report.html OUT.png [--row NAME] [--width 1180] [--height 1500] [--from TOP] [--dark]
"""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "page"))
import browser


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("page")
    parser.add_argument("out")
    parser.add_argument("--row", default="")
    parser.add_argument("--width", type=int, default=1180)
    parser.add_argument("--height", type=int, default=1500)
    parser.add_argument("--section", help="start at the section with this id")
    parser.add_argument("--point", type=float, nargs=2, metavar=("X", "Y"), help="point at this share of the timeline")
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    with browser.Browser(options.width, options.height) as chromium:
        page = chromium.open(options.page, f"#{options.row}" if options.row else "")
        page.prefer("dark" if options.dark else "light")
        if options.section:
            page.evaluate(f"scrollTo(0, document.getElementById('{options.section}').offsetTop - 16)")
        if options.point:
            left, top, width, height = page.evaluate(
                "(({left, top, width, height}) => [left, top, width, height])(document.querySelector('.timeline').getBoundingClientRect())")
            page.move(left + width * options.point[0], top + height * options.point[1])
        page.screenshot(options.out)


if __name__ == "__main__":
    main()
