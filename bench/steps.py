#!/usr/bin/env python3
"""Whole training steps beside PyTorch's on the CPU: the same shapes, the same threads, in turn.

usage: bench/steps.py [--ebb build/release/ebb] [--python python3] [--threads 2] [--rounds 3] [--steps 12] [gpt2 llama resnet bert]

The peer is PyTorch eager or torch.compile, whichever is faster; in memory, whichever takes less. ebb runs twice: keeping all, and
with its whole process within 0.4 of the peer's memory, where a plan can keep that. Prints a table and, last, one JSON document. The
memory compared is ebb's whole process at its peak against PyTorch's above what it held before the model was made, so that its
imports do not count; ebb's planned peak stands beside."""
import argparse
import json
import statistics
import sys
from pathlib import Path

from runs import json_lines, needed

CASES = {
    "gpt2": "--workload gpt2 --layers 4 --width 256 --heads 4 --sequence 256 --vocabulary 5000 --batch 8",
    "llama": "--workload llama --layers 4 --width 256 --heads 4 --kv-heads 2 --hidden 704 --sequence 256 --vocabulary 5000 --batch 8",
    "resnet": "--workload resnet --depth 32 --batch 64",
    "bert": "--workload bert --sequence 128 --batch 8",
}
LEAN = 0.4  # of PyTorch's memory


def measure(a, case):
    here = Path(__file__).resolve().parent
    peers = {"eager": [], "compiled": []}
    ours, lean = [], []
    train = [a.ebb, "train", *CASES[case].split(), "--steps", str(a.steps), "--eval-batches", "0", "--threads", str(a.threads), "--json"]
    torch = [a.python, str(here / "torch_step.py"), case, str(a.threads), str(a.steps)]
    median = lambda rows, key: statistics.median(row[key] for row in rows)
    memory = lambda: min(median(rows, "above_idle_bytes") for rows in peers.values())
    for _ in range(a.rounds):  # in turn, so that noise affects all of them
        ours.append(needed(train))
        peers["eager"].append(needed(torch))
        peers["compiled"].append(needed([*torch, "compile"]))
        lean += json_lines([*train, "--whole-process", "--budget", str(int(LEAN * memory()))])[-1:]
    peer = min(peers, key=lambda name: median(peers[name], "step_ms"))
    row = {"case": case, "params": ours[0]["params"], "torch": peers[peer][0]["torch"], "peer": peer, "ebb_ms": median(ours, "step_ms"),
           "torch_ms": median(peers[peer], "step_ms"), "eager_ms": median(peers["eager"], "step_ms"),
           "compiled_ms": median(peers["compiled"], "step_ms"), "ebb_planned_bytes": ours[0]["planned_peak_bytes"],
           "ebb_resident_bytes": ours[0]["measured_peak_bytes"], "ebb_process_bytes": median(ours, "process_peak_bytes"),
           "torch_above_idle_bytes": memory()}
    row["time_ratio"] = row["ebb_ms"] / row["torch_ms"]
    row["memory_ratio"] = row["ebb_process_bytes"] / row["torch_above_idle_bytes"]  # ours with all its code and data
    if lean:
        row["lean_ms"], row["lean_process_bytes"] = median(lean, "step_ms"), median(lean, "process_peak_bytes")
        row["lean_time_ratio"] = row["lean_ms"] / row["torch_ms"]
        row["lean_memory_ratio"] = row["lean_process_bytes"] / row["torch_above_idle_bytes"]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ebb", default=str(Path(__file__).resolve().parent.parent / "build/release/ebb"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    a = parser.parse_args()
    results = []
    mib = lambda row, key: f"{row[key] / 2**20:7.0f} MiB"
    for case in a.cases:
        row = measure(a, case)
        results.append(row)
        print(f"{case:7} ebb {row['ebb_ms']:7.1f} ms, planned {mib(row, 'ebb_planned_bytes')}, process {mib(row, 'ebb_process_bytes')}"
              f"   torch ({row['peer']}) {row['torch_ms']:7.1f} ms, above idle {mib(row, 'torch_above_idle_bytes')}"
              f"   time {row['time_ratio']:.2f}   memory {row['memory_ratio']:.2f}", flush=True)
        if "lean_ms" in row:
            print(f"{'':7} within {LEAN} of that memory: {row['lean_ms']:7.1f} ms, process {mib(row, 'lean_process_bytes')}"
                  f"   time {row['lean_time_ratio']:.2f}   memory {row['lean_memory_ratio']:.2f}", flush=True)
    print(json.dumps({"threads": a.threads, "rounds": a.rounds, "steps": a.steps, "results": results}))


if __name__ == "__main__":
    main()
