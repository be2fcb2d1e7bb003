#!/usr/bin/env python3
"""Lays out every source as .clang-format says, with clang-format 14: other versions break lines elsewhere.

  tools/format.py                writes the files that differ
  tools/format.py --check        only compares; ends with 1 where a file differs (a test runs this)

Ends with 77, which tests take for skipped, where clang-format 14 is not installed.
"""
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["bench", "examples", "include", "src", "tests"]
ENDINGS = {".h", ".cpp", ".cu", ".cuh"}
SKIPPED = 77


def formatter():
    for name in ("clang-format-14", "clang-format"):
        found = shutil.which(name)
        if found and " version 14." in subprocess.run([found, "--version"], capture_output=True, text=True).stdout:
            return found
    return None


def sources():
    """Relative to the root, without what a build in one of the folders made."""
    paths = (path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return sorted(str(path) for path in paths if path.suffix in ENDINGS and "build" not in path.parts)


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    program = formatter()
    if not program:
        print("skipped: clang-format 14 is not installed")
        return SKIPPED
    return subprocess.run([program, *(["--dry-run", "-Werror"] if sys.argv[1:] else ["-i"]), *sources()], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
