#!/usr/bin/env python3
"""Compares training steps on a GPU with PyTorch's: the table of docs/performance.md, in one command.

  bench/cuda.py --ebb build/release/ebb --json results.json            all rows
  bench/cuda.py --ebb build/release/ebb gpt2 bert                      rows whose name holds a word

Every row is a step of `ebb train` and the same step in PyTorch on the same machine, one after the other. Ratios are of
times and of peaks, below 1 ebb needs less. ebb's peak is what the plan says; `taken` is what the driver says was taken.
Figures are for reading: none makes the command fail.
"""
import argparse
import json
import pathlib
import sys

from runs import run

HERE = pathlib.Path(__file__).resolve().parent

GPT2 = "train --workload gpt2 --batch 16 --steps 25 --eval-batches 0 --device cuda --json"
XL = "train --workload gpt2 --layers 48 --heads 25 --width 1600 --batch 4 --steps 15 --eval-batches 0 --device cuda --json"
MEDIUM = "train --workload gpt2 --layers 24 --heads 16 --width 1024 --batch 8 --steps 20 --eval-batches 0 --device cuda --json"
LLAMA = ("train --workload llama --layers 16 --width 2048 --heads 16 --kv-heads 4 --hidden 5632 --vocabulary 32000 --batch 4 --sequence 2048 "
         "--precision split-bf16 --steps 15 --eval-batches 0 --device cuda --json")
LLAMA_64 = ("train --workload llama --layers 24 --width 1024 --heads 16 --kv-heads 16 --hidden 2816 --vocabulary 32000 --batch 8 --sequence 1024 "
            "--precision split-bf16 --steps 15 --eval-batches 0 --device cuda --json")
RESNET = "train --workload resnet --depth 50 --batch 256 --steps 25 --eval-batches 0 --device cuda --json"
BERT = "train --workload bert --batch 32 --sequence 512 --steps 15 --eval-batches 0 --device cuda --json"

# Weights of split-bf16 are float32, held as their bfloat16 and the bits that complete it: no copies in bfloat16 are made.
# `selective` keeps what products and attention make and computes norms and activations again.
# Name, ebb's command, the peer's cases, and the ratios aimed at: time, memory. Of several cases, the best of each figure.
ROWS = [
    ("gpt2 split-bf16, keep all", f"{GPT2} --precision split-bf16", "gpt2:bf16+compile", 0.85, 0.5),
    ("gpt2 split-bf16, selective", f"{GPT2} --precision split-bf16 --recompute selective", "gpt2:bf16+compile", 0.85, 0.5),
    ("gpt2 split-bf16, budget 5000MiB", f"{GPT2} --precision split-bf16 --budget 5000MiB", "gpt2:bf16+compile", 0.85, 0.5),
    ("gpt2 bf16, budget 5000MiB", f"{GPT2} --precision bf16 --budget 5000MiB", "gpt2:bf16+compile", 0.85, 0.5),
    ("gpt2 split-bf16, budget 3GiB", f"{GPT2} --precision split-bf16 --budget 3GiB", "gpt2:bf16+compile", 1.05, 0.3),
    ("gpt2 split-bf16, 8-bit state, 1500MiB", f"{GPT2} --precision split-bf16 --optimizer adamw8bit --budget 1500MiB",
     "gpt2:bf16+compile", 1.4, 0.15),
    ("gpt2 fp8, keep all", f"{GPT2} --precision fp8", "gpt2:bf16+compile", 0.65, 0.6),
    ("gpt2-xl split-bf16, budget 22.5GiB", f"{XL} --precision split-bf16 --budget 22.5GiB", "gpt2-xl:bf16+compile", 0.9, 0.7),
    ("gpt2-350m split-bf16, keep all", f"{MEDIUM} --precision split-bf16", "gpt2-350m:bf16+compile", 0.8, 0.85),
    ("gpt2-350m split-bf16, budget 6600MiB", f"{MEDIUM} --precision split-bf16 --budget 6600MiB", "gpt2-350m:bf16+compile", 0.9, 0.5),
    ("llama split-bf16, keep all", LLAMA, "llama:bf16+compile", 0.72, 0.9),
    ("llama split-bf16, budget 11100MiB", f"{LLAMA} --budget 11100MiB", "llama:bf16+compile", 1.0, 0.5),
    ("llama fp8, keep all", LLAMA.replace("split-bf16", "fp8"), "llama:bf16+compile", 0.65, 0.9),
    ("llama-64 split-bf16, keep all", LLAMA_64, "llama-64:bf16+compile", 0.8, 0.9),
    ("resnet50 bf16, budget 2350MiB", f"{RESNET} --precision bf16 --budget 2350MiB", "resnet50:bf16 resnet50:bf16+compile",
     0.9, 0.7),
    ("bert fp16, budget 3800MiB", f"{BERT} --precision fp16 --budget 3800MiB", "bert:fp16", 0.8, 0.5),
    ("bert fp32, keep all", f"{BERT} --precision fp32", "bert:fp32 bert:fp32+compile", 1.0, 0.85),
]


def best(peers):
    """The least time and the least peak of the cases that ran."""
    ran = [each for each in peers if each]
    return {key: min(each[key] for each in ran) for key in ("step_ms", "peak_bytes")} if ran else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="parts of the names of the rows to run (default: all)")
    parser.add_argument("--ebb", nargs="+", default=[str(HERE.parent / "build/release/ebb")], help="the program, or a command that starts it")
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch (default: this one)")
    parser.add_argument("--json", metavar="FILE", help="write the results here as well")
    options = parser.parse_args()

    peers, results = {}, []
    print(f"{'':<40} {'ms':>8} {'torch':>8} {'ratio':>6} {'aim':>5} {'MiB':>8} {'taken':>8} {'torch':>8} {'ratio':>6} {'aim':>5}")
    for name, command, peer, time_aim, memory_aim in ROWS:
        if options.rows and not any(word in name for word in options.rows):
            continue
        for case in peer.split():
            if case not in peers:
                peers[case] = run([options.python, str(HERE / "torch_cuda.py"), case])
        ours, theirs = run(options.ebb + command.split()), best([peers[case] for case in peer.split()])
        row = {"name": name, "command": "ebb " + command, "peer": peer, "ebb": ours, "torch": theirs}
        if ours:
            ours["losses"] = [ours["losses"][0], ours["losses"][-1]]
        if ours and theirs:
            row["time_ratio"] = ours["step_ms"] / theirs["step_ms"]
            row["memory_ratio"] = ours["planned_peak_bytes"] / theirs["peak_bytes"]
            mib = 1 << 20
            print(f"{name:<40} {ours['step_ms']:8.2f} {theirs['step_ms']:8.2f} {row['time_ratio']:6.3f} {time_aim:5.2f} "
                  f"{ours['planned_peak_bytes'] / mib:8.0f} {ours['measured_peak_bytes'] / mib:8.0f} {theirs['peak_bytes'] / mib:8.0f} "
                  f"{row['memory_ratio']:6.3f} {memory_aim:5.2f}", flush=True)
        results.append(row)
        if options.json:  # after every row: a command that is cut off keeps those before
            pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
