#!/usr/bin/env python3
"""Compares half precision on the CPU with float32: products, and whole steps.

Each is measured with what the processor has and again with libraries and products held to AVX2 ("older"), in turn and in several rounds, of
which the least processor time of one thread counts: other processes only ever add. Prints one JSON document.

  ninja -C build/release ebb_bench
  bench/precision.py [--build build/release] [--rounds 3] > docs/results/precision-cpu.json
"""
import argparse
import json
import pathlib

from compare import processor
from runs import json_lines, needed

HERE = pathlib.Path(__file__).resolve().parent
OLDER = {"ONEDNN_MAX_CPU_ISA": "AVX2", "OPENBLAS_CORETYPE": "Haswell"}
SIZES = ["1024x768x3072", "2048x768x768", "768x4096x768", "64x512x512", "96x256x64x256"]
TYPES = {"bf16": "matmul_bf16", "fp16": "matmul_fp16"}
WORKLOADS = ["gpt2 --layers 4 --width 256 --heads 4 --vocabulary 5000 --sequence 256 --batch 8", "lm", "resnet --depth 32 --batch 64"]


def products(build, rounds):
    """Processor time ÷ that of the same product in float32 on OpenBLAS, in the same run."""
    least = {}
    for _ in range(rounds):
        for older in (False, True):
            for case in json_lines([build / "bench/ebb_bench", "matmul_", "--threads", "1", "--json"], OLDER if older else {}):
                ratio = case["processor_ms"] / case["library_processor_ms"]
                key = case["case"], older
                least[key] = min(ratio, least.get(key, ratio))
    rows = []
    for size in SIZES:
        batch, *edges = size.split("x") if size.count("x") == 3 else ["", *size.split("x")]
        row = {"size": (f"{batch} of " if batch else "") + " × ".join(edges)}
        for kind, prefix in TYPES.items():
            for older in (False, True):
                row[kind + ("_older" if older else "")] = round(least[f"{prefix}/{size}", older], 3)
        rows.append(row)
    return rows


def steps(build, rounds):
    rows = []
    for workload in WORKLOADS:
        for older in (False, True):
            row = {"workload": workload, "older": older}
            for _ in range(rounds):
                for precision in ("fp32", "bf16", "fp16"):
                    run = needed([build / "ebb", "train", "--workload", *workload.split(), "--steps", "8", "--eval-batches", "0", "--threads",
                                  "1", "--json", "--precision", precision], OLDER if older else {})
                    ms = min(run["step_processor_ms"], row.get(precision, {}).get("ms", run["step_processor_ms"]))
                    row[precision] = {"ms": round(ms, 2), "planned_peak_bytes": run["planned_peak_bytes"]}
            rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent / "build/release")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(json.dumps({"processor": processor(), "threads": 1, "rounds": options.rounds, "products": products(options.build, options.rounds),
                      "steps": steps(options.build, options.rounds)}, indent=1))


if __name__ == "__main__":
    main()
