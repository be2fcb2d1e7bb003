#!/usr/bin/env python3
"""Bytes a parameter takes in training, for combinations of precision and optimizer: planned, and as the system holds them.

  bench/bytes.py --ebb build/release/ebb --json docs/results/bytes-per-parameter.json

Each row runs two steps of GPT-2 (124 M parameters, one sequence of 64 tokens, so that little else is in memory) by `ebb profile`. Weights,
gradients and state are what the plan counts at its peak, so gradients that are released as they are used count as few as are alive together.
`held` is what the operating system holds of weights and state after the steps. Figures are for reading: none makes the command fail.
"""
import argparse
import json
import pathlib
import tempfile

from runs import needed

HERE = pathlib.Path(__file__).resolve().parent
COMBINATIONS = [
    ("fp32", "adamw", []), ("bf16", "adamw", []), ("fp16", "adamw", []), ("bf16", "adamw8bit", []), ("bf16", "adafactor", []), ("bf16", "lion", []),
    ("pure-bf16", "adamw", []), ("pure-bf16", "adamw", ["--rounding", "kahan"]), ("pure-bf16", "lomo", []),
    ("split-bf16", "adamw", []), ("split-bf16", "adamw8bit", []), ("split-bf16", "adamw8bit", ["--master-bits", "8"]),
    ("split-bf16", "adamw4bit", ["--master-bits", "8"]),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ebb", default=str(HERE.parent / "build/release/ebb"))
    parser.add_argument("--json", metavar="FILE", help="write the results here as well")
    options = parser.parse_args()
    rows = []
    print("| precision | optimizer | weights | gradients | state | together | held by the system |\n|---|---|---|---|---|---|---|")
    for precision, optimizer, more in COMBINATIONS:
        with tempfile.TemporaryDirectory() as out:
            command = ["profile", "--workload", "gpt2", "--batch", "1", "--sequence", "64", "--steps", "1", "--precision", precision,
                       "--optimizer", optimizer, *more]
            study = needed([options.ebb, *command, "--out", out, "--json"])
        row, count = study["rows"][0], study["settings"]["parameters"]
        planned, held = row["planned_by_category"], row["measured_staying_by_category"]
        each = {name: planned[category] / count
                for name, category in (("weights", "weights"), ("gradients", "gradients"), ("state", "optimizer"))}
        result = {"precision": precision, "optimizer": optimizer, "options": " ".join(more), **each, "together": sum(each.values()),
                  "held": (held["weights"] + held["optimizer"]) / count, "command": "ebb " + " ".join(command)}
        rows.append(result)
        print(f"| {precision} {result['options']} | {optimizer} | {each['weights']:.2f} | {each['gradients']:.2f} | {each['state']:.2f} | "
              f"{result['together']:.2f} | {result['held']:.2f} |", flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
