#!/usr/bin/env python3
"""Puts measured numbers into the documentation, from the results under docs/results.

  tools/fill_docs.py               writes every block anew
  tools/fill_docs.py --check       only compares; ends with 1 and says where a number differs (a test runs this)
  tools/fill_docs.py --add NAME DIR    takes over the results that `ebb ablate --out DIR` wrote, as NAME

What is between two comments is generated. In Markdown:

  <!-- ablation gpt2-cpu -->           the whole table of docs/results/ablation-gpt2-cpu.json
  <!-- ablation gpt2-cpu: blocks, auto -->       the baseline and these rows
  <!-- ablation-categories gpt2-cpu -->          the same rows by category
  <!-- ablation-source gpt2-cpu -->              workload, machine, date and command
  <!-- steps -->                       ebb beside PyTorch, from docs/results/steps-cpu.md
  <!-- steps-gpu -->                   the same on a GPU, from docs/results/steps-h200.json
  <!-- steps-betty -->                 ebb beside Betty, from docs/results/betty-h200.json
  <!-- end -->                         ends each of them

and within a line:  <!-- = gpt2-cpu all memory_ratio -->0.34<!-- end -->
"""
import json
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
CATEGORIES = ("weights", "gradients", "optimizer", "activations", "inputs", "workspace")


def study(name):
    return json.loads((RESULTS / f"ablation-{name}.json").read_text())


def workload(settings):
    """Its name, and what it trains where that is a choice of its own."""
    return settings["workload"] + (f" of {settings['classifier']}" if "classifier" in settings else "")


def short(value):
    """About three significant digits, as ebb's own tables have them."""
    size = abs(value)
    places = 0 if size == 0 or size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:.{places}f}"


def mib(count):
    return short(count / 2**20)


def title(row):
    return row["name"].replace("+", " + ")


def chosen(name, rows):
    data = study(name)
    wanted = [r.strip() for r in rows.split(",")] if rows else [r["name"] for r in data["rows"]]
    by_name = {r["name"]: r for r in data["rows"]}
    missing = [r for r in wanted if r not in by_name]
    if missing:
        raise SystemExit(f"ablation-{name}.json has no row {', '.join(missing)}")
    if "baseline" not in wanted:
        wanted.insert(0, "baseline")
    return [by_name[r] for r in wanted]


def table(headings, lines):
    rule = "|".join("---" if k == 0 else "---:" for k in range(len(headings)))
    return "\n".join([f"| {' | '.join(headings)} |", f"|{rule}|"] + [f"| {' | '.join(cells)} |" for cells in lines])


def ablation(name, rows):
    lines = []
    for row in chosen(name, rows):
        if "step_ms" not in row:
            lines.append([title(row), row["error"], "", "", "", "", ""])
            continue
        ms = row["step_ms"]
        spread = f" ±{50 * (ms['high'] - ms['low']) / ms['median']:.0f}%" if len(ms["runs"]) > 1 else ""
        same = " =" if row.get("same_losses_as_baseline") and row["name"] != "baseline" else ""
        lines.append([title(row), mib(row["planned_peak_bytes"]), mib(row["measured_peak_bytes"]),
                      f"{row['memory_ratio']:.2f}", short(ms["median"]) + spread, f"{row['time_ratio']:.2f}",
                      f"{row['loss']:.4f}{same}"])
    return table(["row", "planned MiB", "measured MiB", "memory", "ms a step", "time", "loss"], lines)


def categories(name, rows):
    done = [row for row in chosen(name, rows) if "step_ms" in row]
    used = [c for c in CATEGORIES if any(row["planned_by_category"][c] for row in done)]
    return table(["MiB at the peak", *used], [[title(row), *(mib(row["planned_by_category"][c]) for c in used)] for row in done])


def source(name, _):
    data = study(name)
    facts, settings = data["facts"], data["settings"]
    return (f"{workload(settings)}, {settings['parameters']:,} parameters, batch {settings['batch']}, {settings['steps']} steps "
            f"({settings['samples']} samples); {facts['device']}; {facts['date']}; ebb {facts['version']}:\n\n    {facts['command']}\n")


def steps(_, __):
    lines = []
    for line in (RESULTS / "steps-cpu.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 8 and re.fullmatch(r"[\d.]+", cells[1]):
            lines.append([cells[0], cells[6], cells[7]])
    return table(["step", "time, ebb ÷ PyTorch", "memory, ebb ÷ PyTorch"], lines)


GPU_STEPS = {"gpt2": "GPT-2 124M, 16 × 1024", "gpt2-xl": "GPT-2 XL, 4 × 1024", "resnet50": "ResNet-50 (CIFAR form), batch 256",
             "bert": "BERT-base, 32 × 512"}


def beside(name, ours_ms, theirs_ms, planned, taken, theirs):
    """Times in ms, bytes in MiB, then both ratios."""
    return [name, short(ours_ms), short(theirs_ms), f"{ours_ms / theirs_ms:.2f}", short(planned), short(taken), short(theirs),
            f"{planned / theirs:.2f}"]


def gpu_steps(_, __):
    lines = []
    for row in json.loads((RESULTS / "steps-h200.json").read_text()):
        model, _, rest = row["name"].partition(" ")
        how = "compile" if row["peer"].endswith("compile") else "eager"
        ebb, torch = row["ebb"], row["torch"]
        lines.append(beside(f"{GPU_STEPS[model]}, {rest}, against {how}", ebb["step_ms"], torch["step_ms"],
                            ebb["planned_peak_bytes"] / 2**20, ebb["measured_peak_bytes"] / 2**20, torch["peak_bytes"] / 2**20))
    return table(["step", "ebb ms", "PyTorch ms", "time", "planned MiB", "taken MiB", "PyTorch MiB", "memory"], lines)


def betty_steps(_, __):
    rows = json.loads((RESULTS / "betty-h200.json").read_text())["rows"]
    lines = [beside(f"{row['name']}, budget {row['budget']}", row["ebb_ms"], row["betty_ms"], row["ebb_mib"], row["taken_mib"],
                    row["betty_mib"]) for row in rows]
    return table(["ResNet-50, darts", "ebb ms", "Betty ms", "time", "planned MiB", "taken MiB", "Betty MiB", "memory"], lines)


BLOCKS = {"ablation": ablation, "ablation-categories": categories, "ablation-source": source, "steps": steps,
          "steps-gpu": gpu_steps, "steps-betty": betty_steps}
BLOCK = re.compile(r"(<!-- (ablation(?:-\w+)?|steps(?:-\w+)?)(?: ([\w-]+))?(?:: ([^>]*?))? -->\n)(.*?)(<!-- end -->)", re.S)
NUMBER = re.compile(r"(<!-- = ([\w-]+) ([\w+-]+) (\w+) -->)(.*?)(<!-- end -->)")


def number(name, row, field):
    value = chosen(name, row)[-1][field]
    if field.endswith("_bytes"):
        return f"{mib(value)} MiB"
    if field == "step_ms":
        return f"{short(value['median'])} ms"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def filled(text):
    text = BLOCK.sub(lambda m: f"{m[1]}{BLOCKS[m[2]](m[3], m[4])}\n{m[6]}", text)
    return NUMBER.sub(lambda m: f"{m[1]}{number(m[2], m[3], m[4])}{m[6]}", text)


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
        print("\n".join(wrong), "\nRun tools/fill_docs.py.")
        sys.exit(1)


if __name__ == "__main__":
    main()
