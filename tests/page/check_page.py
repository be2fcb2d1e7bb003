#!/usr/bin/env python3
"""Opens the pages that ebb writes in a headless Chromium and uses them as a reader would.

    tests/page/check_page.py EBB [--keep DIR]

EBB is the built program. It makes a small study, profile, frontier, runs and their comparison; every chart must be there,
pointing, row switch, zoom, search, comparing, keyboard and touch must work, contrasts must be those of WCAG AA in light
and dark, and nothing may be logged as an error or fetched from anywhere. Ends with 77, ctest's word for a skipped test,
where no Chromium is installed. --keep leaves pages and pictures in a folder to look at.
"""
import argparse
import pathlib
import sys
import tempfile
import unittest

import browser
from ablation_test import Ablation  # noqa: F401 (unittest finds it)
from page_test import ebb, made
from plans_test import Frontier, Profile, Tiers  # noqa: F401
from runs_test import Levels, Run, Runs, make_runs  # noqa: F401

SIZES = "--workload gpt2 --layers 3 --width 32 --heads 2 --sequence 32 --vocabulary 300 --batch 4 --threads 1".split()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ebb")
    parser.add_argument("--keep")
    options, rest = parser.parse_known_args()
    if browser.find() is None:
        print("skipped: no Chromium is installed (apt-get install chromium)")
        sys.exit(77)
    made.program, made.keep = options.ebb, options.keep
    with tempfile.TemporaryDirectory() as temporary:
        made.folder = folder = pathlib.Path(options.keep or temporary)
        ebb("ablate", *SIZES, "--steps", "2", "--runs", "2", "--points", "4", "--out", str(folder / "ablation"))
        ebb("frontier", *SIZES, "--points", "4", "--out", str(folder / "frontier"))
        ebb("profile", *SIZES, "--out", str(folder / "profile"))
        ebb("profile", *"--workload lm --layers 2 --width 128 --batch 16 --steps 3 --budget least --disk-budget 1GiB".split(),
            "--offload-folder", str(folder), "--out", str(folder / "tiers"))
        make_runs()
        unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
