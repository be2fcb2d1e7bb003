#!/usr/bin/env python3
"""Compares training steps that do not fit into a GPU's memory with PyTorch's ways to offload: the table of docs/techniques/offload.md.

  bench/offload.py --ebb build/release/ebb --json results.json     all rows
  bench/offload.py --ebb build/release/ebb 12GiB                   rows whose name holds a word

The model is GPT-2 XL. Every row is one `ebb train`; `held` is what the driver and the host's mapping say, and must equal
what was planned. The peers run in the same command: FSDP2 with its CPU offload policy, and saved activations in pinned
memory. Figures are for reading: none makes the command fail.
"""
import argparse
import json
import pathlib
import sys

from runs import run

HERE = pathlib.Path(__file__).resolve().parent
XL = "train --workload gpt2 --layers 48 --heads 25 --width 1600 --precision split-bf16 --eval-batches 0 --device cuda --json"

# Name and command. Without offloading no plan takes less than 17.9 GiB.
ROWS = [
    ("4 x 1024, resident", f"{XL} --batch 4 --steps 12"),
    ("4 x 1024, 12GiB", f"{XL} --batch 4 --steps 8 --budget 12GiB --host-budget 60GiB"),
    ("4 x 1024, 8GiB", f"{XL} --batch 4 --steps 8 --budget 8GiB --host-budget 60GiB"),
    ("4 x 1024, 6GiB", f"{XL} --batch 4 --steps 8 --budget 6GiB --host-budget 60GiB"),
    ("4 x 1024, state on the host", f"{XL} --batch 4 --steps 8 --budget 14GiB --host-budget 60GiB --offload state"),
    ("16 x 1024, resident", f"{XL} --batch 16 --steps 8"),
    ("16 x 1024, state on the host, 43GiB", f"{XL} --batch 16 --steps 8 --budget 43GiB --host-budget 60GiB --offload state"),
]
PEERS = ["gpt2-xl:bf16+fsdp-offload", "gpt2-xl:bf16+save-on-cpu"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="parts of the names of the rows to run (default: all, and the peers)")
    parser.add_argument("--ebb", nargs="+", default=[str(HERE.parent / "build/release/ebb")], help="the program, or a command that starts it")
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch (default: this one)")
    parser.add_argument("--json", metavar="FILE", help="write the results here as well")
    options = parser.parse_args()

    mib, results = 1 << 20, []
    print(f"{'':<38} {'ms':>8} {'predicted':>9} {'planned':>8} {'held':>8} {'host':>8} {'held':>8} MiB   last loss")
    for name, command in ROWS:
        if options.rows and not any(word in name for word in options.rows):
            continue
        ours = run(options.ebb + command.split())
        results.append({"name": name, "command": "ebb " + command, "ebb": ours})
        if not ours:
            continue
        host = ours.get("tiers", {}).get("host", {})
        print(f"{name:<38} {ours['step_ms']:8.1f} {ours['predicted_step_ms']:9.1f} {ours['planned_peak_bytes'] / mib:8.0f} "
              f"{ours['measured_peak_bytes'] / mib:8.0f} {host.get('planned_bytes', 0) / mib:8.0f} "
              f"{host.get('measured_bytes', 0) / mib:8.0f}       {ours['losses'][-1]:.6f}", flush=True)
    for case in [] if options.rows else PEERS:
        peer = run([options.python, str(HERE / "torch_cuda.py"), case])
        results.append({"name": case, "torch": peer})
        if peer:
            print(f"{case:<38} {peer['step_ms']:8.1f} {'':>9} {'':>8} {peer['peak_bytes'] / mib:8.0f}", flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
