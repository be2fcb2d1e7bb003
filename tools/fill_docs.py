#!/usr/bin/env python3
"""Puts measured numbers into the documentation, from the results under docs/results.

  tools/fill_docs.py               writes every block anew
  tools/fill_docs.py --check       only compares; ends with 1 and says where a number differs (a test runs this)
  tools/fill_docs.py --add NAME DIR    takes over the results that `ebb ablate --out DIR` wrote, as NAME

What is between two comments is generated, by the functions of doc_tables.py. A block, for example

  <!-- ablation gpt2-cpu: blocks, auto -->       the baseline and these rows of docs/results/ablation-gpt2-cpu.json
  <!-- end -->

and a number within a line, by its file, then keys and names of rows:

  <!-- = ablation-gpt2-cpu rows all memory_ratio -->0.34<!-- end -->

Times and rates that stand outside of such comments, and so come from no file, are errors too.
"""
import pathlib
import re
import shutil
import sys

from doc_tables import BLOCKS, RESULTS, ROOT, study, value, workload

BLOCK = re.compile(r"(<!-- (" + "|".join(sorted(BLOCKS, key=len, reverse=True)) + r")(?: ([\w-]+))?(?:: ([^>]*?))? -->\n)(.*?)(<!-- end -->)", re.S)
NUMBER = re.compile(r"(<!-- = ([^>]+?) -->)(.*?)(<!-- end -->)")
MEASURED = re.compile(r"\d[\d.,]* ?(?:ms|µs|TFLOP/s|TB/s|GB/s)\b")
NOT_PROSE = re.compile(r"```.*?```|`[^`\n]*`|<!-- (?!end).*?<!-- end -->", re.S)


def filled(text):
    text = BLOCK.sub(lambda m: f"{m[1]}{BLOCKS[m[2]](m[3], m[4])}\n{m[6]}", text)
    return NUMBER.sub(lambda m: m[1] + value(m[2].split()[0], m[2].split()[1:]) + m[4], text)


def without_source(text):
    """Measured numbers in prose that no file vouches for, with their lines."""
    prose = NOT_PROSE.sub(lambda m: "\n" * m[0].count("\n"), text)
    return [(line, m[0]) for line, words in enumerate(prose.splitlines(), 1) for m in MEASURED.finditer(words)]


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def add(name, folder):
    shutil.copyfile(pathlib.Path(folder) / "results.json", RESULTS / f"ablation-{name}.json")
    page = RESULTS / f"ablation-{name}.md"
    if not page.exists():
        page.write_text(f"# Ablation of {workload(study(name)['settings'])}\n\n"
                        f"<!-- ablation-source {name} -->\n<!-- end -->\n\n<!-- ablation {name} -->\n<!-- end -->\n\n"
                        f"<!-- ablation-categories {name} -->\n<!-- end -->\n")


def main():
    if sys.argv[1:2] == ["--add"]:
        add(*sys.argv[2:])
    check, wrong = "--check" in sys.argv, []
    for page in pages():
        old = page.read_text()
        if RESULTS not in page.parents:  # the pages there are results themselves
            wrong += [f"{page.relative_to(ROOT)}:{line}: says {number}, but no file of docs/results does" for line, number in without_source(old)]
        new = filled(old)
        if new == old:
            continue
        if not check:
            page.write_text(new)
            print(f"{page.relative_to(ROOT)}: filled in")
            continue
        for number_of_line, (a, b) in enumerate(zip(old.splitlines(), new.splitlines()), 1):
            if a != b:
                wrong.append(f"{page.relative_to(ROOT)}:{number_of_line}: says\n  {a}\nbut the results say\n  {b}")
                break
        else:
            wrong.append(f"{page.relative_to(ROOT)}: lines of a generated block are missing")
    if wrong:
        print("\n".join(wrong) + "\nRun tools/fill_docs.py.")
        sys.exit(1)


if __name__ == "__main__":
    main()
