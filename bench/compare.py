#!/usr/bin/env python3
"""Compares the times of ebb's ops with PyTorch's and with those of the underlying libraries.

Runs ebb_bench and torch_ops.py in turn, case by case, in several rounds, so that noise of the
machine falls on both alike. Prints a table and, at the end or to a file, one JSON document. Ratios
are of times, below 1 ebb is faster: of medians first, then in brackets of the shortest runs, which
tell more when others use the machine. Figures are for reading: none makes the command fail.

  cmake -B build/release -G Ninja && ninja -C build/release ebb_bench
  bench/compare.py --threads 2 --rounds 5 --json results.json
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent

# The timed programs, and the names of their figures.
TIMED = {"ebb": ("ebb", ""), "torch": ("torch", ""), "compiled": ("torch", "compiled_"),
         "library": ("ebb", "library_")}


class Side:
    """One of the two programs, kept running: a case's name in, its JSON line out."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def __call__(self, name):
        try:
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"{self.process.args[0]} stopped at case {name}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def processor():
    try:
        for line in open("/proc/cpuinfo", encoding="utf-8"):
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def has_torch(python):
    return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*",
                        help="parts of the names of the cases to run (default: all)")
    parser.add_argument("--bench", default=HERE.parent / "build/release/bench/ebb_bench",
                        help="the program ebb_bench (default: %(default)s)")
    parser.add_argument("--python", default=sys.executable,
                        help="a Python that has PyTorch (default: this one)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3,
                        help="time given to each measurement of a round (default: %(default)s)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--json", metavar="FILE",
                        help="write the JSON document here instead of after the table")
    return parser.parse_args()


def compare(options):
    listed = subprocess.run([options.bench, "--list"], capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split()
             if not options.cases or any(part in name for part in options.cases)]
    common = ["--serve", "--threads", str(options.threads), "--seconds", str(options.seconds)]
    sides = {"ebb": Side([str(options.bench), *common])}
    if has_torch(options.python):
        extra = ["--no-compile"] if options.no_compile else []
        sides["torch"] = Side([options.python, str(HERE / "torch_ops.py"), *common, *extra])
    else:
        print(f"compare.py: {options.python} has no PyTorch; only ebb and the libraries underneath "
              "are timed (--python names another)", file=sys.stderr)

    lines = {name: {side: [] for side in sides} for name in names}
    load = [os.getloadavg()[0]]
    for turn in range(options.rounds):
        for name in names:
            for side in sides if turn % 2 == 0 else reversed(sides):
                lines[name][side].append(sides[side](name))
        load.append(os.getloadavg()[0])
        print(f"round {turn + 1} of {options.rounds} done, load {load[-1]:.1f}", file=sys.stderr)
    for side in sides.values():
        side.close()
    return lines, load


def summary(name, lines):
    """Medians and minima over the rounds, and how they compare."""
    row = {"case": name, "peak_bytes": lines["ebb"][0]["peak_bytes"]}
    for title, (side, prefix) in TIMED.items():
        values = [line for line in lines.get(side, []) if prefix + "median_ms" in line]
        if not values:
            continue
        row[f"{title}_ms"] = statistics.median(line[prefix + "median_ms"] for line in values)
        row[f"{title}_min_ms"] = min(line[prefix + "min_ms"] for line in values)
        if title != "ebb":
            row[f"ebb/{title}"] = row["ebb_ms"] / row[f"{title}_ms"]
            row[f"ebb/{title}_min"] = row["ebb_min_ms"] / row[f"{title}_min_ms"]
    return row


def print_table(rows):
    width = max(len(row["case"]) for row in rows)
    print(f"{'case':<{width}} {'ebb ms':>9}", *(f"{title:>9} {'ratio':>13}" for title in TIMED
                                                 if title != "ebb"), " peak MiB")
    for row in rows:
        cells = [f"{row['ebb_ms']:9.3f}"]
        for title in TIMED:
            if title == "ebb":
                continue
            if f"{title}_ms" not in row:
                cells.append(" " * 23)
                continue
            ratios = f"{row[f'ebb/{title}']:.2f} ({row[f'ebb/{title}_min']:.2f})"
            cells.append(f"{row[f'{title}_ms']:9.3f} {ratios:>13}")
        print(f"{row['case']:<{width}}", *cells, f"{row['peak_bytes'] / 2**20:9.1f}")


def main():
    options = arguments()
    if not pathlib.Path(options.bench).exists():
        print(f"compare.py: there is no {options.bench}; build it first (see --help)",
              file=sys.stderr)
        return
    try:
        lines, load = compare(options)
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return
    rows = [summary(name, lines[name]) for name in lines]
    if not rows:
        print("compare.py: no case has a name like that; see ebb_bench --list", file=sys.stderr)
        return
    versions = {side: found[0]["version"] for side, found in next(iter(lines.values())).items()}
    document = {"processor": processor(), "threads": options.threads, "rounds": options.rounds,
                "seconds": options.seconds, "load": load, "versions": versions, "cases": rows}
    print_table(rows)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    else:
        print(json.dumps(document))


if __name__ == "__main__":
    main()
