#!/usr/bin/env python3
"""Where a step's time goes on a device, by kind of kernel: the table of docs/performance.md.

  bench/parts.py --ebb build/release/ebb --json docs/results/profile-gpt2-h200.json -- --workload gpt2 --batch 16 ...

Runs `ebb profile` with what follows `--` and adds up its kernels, each timed by itself: a replayed step is shorter than
their sum. Figures are for reading: none makes the command fail.
"""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

# Parts of a step, and the ops that belong to them.
PARTS = [
    ("products", {"matmul", "matmul_then", "fp8_matmul", "fp8_product"}),
    ("codes of fp8", {"fp8_amax", "fp8_quantise"}),
    ("attention", {"attention", "attention_grad"}),
    ("loss without logits", {"linear_cross_entropy", "linear_cross_entropy_grad", "linear_cross_entropy_joint"}),
    ("convolutions", {"conv2d", "conv2d_input_grad", "conv2d_weight_grad"}),
    ("norms", {"layer_norm", "layer_norm_grad", "rms_norm", "rms_norm_grad", "batch_norm", "batch_norm_grad"}),
    ("activations", {"gelu", "gelu_grad", "gelu_tanh", "gelu_tanh_grad", "silu", "silu_grad", "relu"}),
    ("sums", {"sum", "sum_squares", "sum_squares_group", "fused_reduce"}),
    ("updates", {f"{name}{many}" for name in ("adam", "sgd", "lion", "adafactor", "quantised_adam") for many in ("", "_group")}),
    ("casts", {"cast"}),
]


def part_of(op):
    return next((name for name, ops in PARTS if op in ops), "the rest")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ebb", nargs="+", default=[str(HERE.parent / "build/release/ebb")], help="the program, or a command that starts it")
    parser.add_argument("--json", metavar="FILE", help="write the results here as well")
    parser.add_argument("step", nargs="*", help="what ebb profile is told, after --")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(options.ebb + ["profile", *options.step, "--out", folder], check=True, stdout=subprocess.DEVNULL)
        profile = json.loads(pathlib.Path(folder, "profile.json").read_text(encoding="utf-8"))
        trace = json.loads(pathlib.Path(folder, "trace.json").read_text(encoding="utf-8"))

    parts = {}
    for event in trace["traceEvents"]:
        if event["ph"] != "X":
            continue
        again = event["cat"] == "computed again"
        part = parts.setdefault("computed again" if again else part_of(event["name"]), {"calls": 0, "ms": 0.0})
        part["calls"] += 1
        part["ms"] += event["dur"] / 1e3
    rows = [{"part": name, **part} for name, part in sorted(parts.items(), key=lambda item: -item[1]["ms"])]
    largest = max((e for e in trace["traceEvents"] if e["ph"] == "X" and part_of(e["name"]) == "updates"), key=lambda e: e["dur"], default=None)
    result = {
        "command": " ".join(["ebb", "profile", *options.step]),
        "date": datetime.date.today().isoformat(),
        "device": profile["facts"]["device"],
        "step_ms": profile["rows"][0]["step_ms"]["median"],
        "kernels_ms": sum(row["ms"] for row in rows),
        "largest_update": {"module": largest["args"]["module"], "ms": largest["dur"] / 1e3} if largest else None,
        "rows": rows,
    }
    for row in rows:
        print(f"{row['part']:<24} {row['calls']:>5} {row['ms']:>9.3f} ms")
    print(f"{'':<24} {'':>5} {result['kernels_ms']:>9.3f} ms; the step {result['step_ms']:.3f} ms", file=sys.stderr)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
