#!/usr/bin/env python3
"""Needle's checkpointing study on the lm workload: memory and time of keeping every n-th node.

For 1, 4 and 12 layers (hidden 512, batch 256) it trains a few steps in every mode, in turn so that noise falls on all alike,
and beside every segment rule the automatic plan at the same peak. Times on the CPU are the processor's, which other processes
disturb less than the clock on the wall. Prints one JSON document.

  bench/needle.py [--ebb ./ebb] [--device cpu] [--rounds 3] [--steps 12] [--layers 1 4 12]
"""
import argparse
import json

from runs import needed

MODES = ["none", "segment=2", "segment=4", "segment=8", "segment=all"]


def ebb(arguments, *options):
    return needed([*arguments.ebb.split(), *options, "--json"])


def size(arguments, layers):
    return ["--workload", "lm", "--hidden", "512", "--batch", "256", "--layers", str(layers), "--device", arguments.device]


def train(arguments, layers, options):
    return ebb(arguments, "train", *size(arguments, layers), "--steps", str(arguments.steps), "--eval-batches", "0", *options)


def least_ms(arguments, runs):
    clock = "step_processor_ms" if arguments.device == "cpu" else "step_ms"
    return min(run[clock] for run in runs)  # other processes can only add time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ebb", default="./ebb")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 4, 12])
    arguments = parser.parse_args()
    rows = []
    for layers in arguments.layers:
        variants = {mode: ["--recompute", mode] for mode in MODES}
        for mode in MODES[1:]:
            peak = ebb(arguments, "plan", *size(arguments, layers), "--recompute", mode)["planned_peak_bytes"]
            variants[f"auto at {mode}'s peak"] = ["--budget", str(peak)]
        runs = {name: [] for name in variants}
        for _ in range(arguments.rounds):
            for name, options in variants.items():
                runs[name].append(train(arguments, layers, options))
        base = runs["none"]
        base_ms = least_ms(arguments, base)
        for name, results in runs.items():
            last = results[-1]
            assert last["losses"] == base[-1]["losses"], f"{name} changed the losses"
            activations = last["arena_bytes"]
            ms = least_ms(arguments, results)
            rows.append({
                "layers": layers,
                "recompute": name,
                "arena_bytes": activations,
                "planned_peak_bytes": last["planned_peak_bytes"],
                "measured_peak_bytes": last["measured_peak_bytes"],
                "saved": round(1 - activations / base[-1]["arena_bytes"], 4),
                "step_ms": round(ms, 3),
                "extra_time": round(ms / base_ms - 1, 4),
                "predicted_extra_time": round(last["overhead"] - 1, 4),
            })
            print(json.dumps(rows[-1]), flush=True)
    print(json.dumps({"study": "needle", "device": arguments.device, "steps": arguments.steps, "rounds": arguments.rounds, "rows": rows}))


if __name__ == "__main__":
    main()
