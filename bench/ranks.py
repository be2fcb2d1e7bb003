#!/usr/bin/env python3
"""Two ranks with one core each, beside one rank with two cores, and beside PyTorch's DDP and FSDP2 with gloo on the same model.

  bench/ranks.py build/release/ebb --python venv/bin/python --rounds 5 [--json FILE]

Every round runs all of them in turn, so that noise of the machine falls on all alike; where others use the cores, the processor time
of a step tells more than its wall time. GPT-2 in float32 with AdamW, the same
sizes and the same global batch everywhere. Times are medians over rounds of a rank's median step; memory is the largest resident
size of a rank's process, and what of it is for training: the planned peak of ebb, and what PyTorch's process takes above its
size before the model is made. PyTorch is asked for in a process of
its own and is needed for nothing else. Figures are for reading: none makes the command fail."""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

from runs import needed

HERE = Path(__file__).resolve().parent


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def torch_ranks(python, kind, ranks, threads, o):
    sizes = [str(x) for x in (o.steps, o.batch // ranks, o.layers, o.width, o.heads, o.sequence, o.vocabulary)]
    command = [python, str(HERE / "torch_ranks.py"), kind, str(threads)] + sizes
    port = str(free_port())
    running = []
    for rank in range(ranks):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "RANK": str(rank), "WORLD_SIZE": str(ranks),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment))
    results = []
    for process in running:
        out, err = process.communicate()
        lines = [line for line in out.splitlines() if line.startswith("{")]
        if not lines:
            sys.exit(f"{kind} failed:\n{err[-3000:]}")
        results.append(json.loads(lines[-1]))
    return {"step_ms": max(r["step_ms"] for r in results), "processor_ms": sum(r["processor_ms"] for r in results),
            "process_peak_bytes": max(r["process_peak_bytes"] for r in results),
            "above_idle_bytes": max(r["above_idle_bytes"] for r in results)}


def ebb_ranks(ebb, ranks, threads, shard, o, in_process=False):
    launch = ["launch", "-n", str(ranks)] + (["--in-process"] if in_process else []) + ["--"]
    command = [ebb] + (launch if ranks > 1 else []) + ["train", "--workload", "gpt2"]
    for name, value in (("layers", o.layers), ("width", o.width), ("heads", o.heads), ("sequence", o.sequence),
                        ("vocabulary", o.vocabulary), ("batch", o.batch), ("leaves", 2), ("steps", o.steps),
                        ("threads", threads), ("eval-batches", 0), ("dropout", 0)):
        command += [f"--{name}", str(value)]
    if ranks > 1:
        command += ["--shard", str(shard)]
    result = needed(command + ["--json"])
    if ranks == 1:
        own = [{"step_ms": result["step_ms"], "step_processor_ms": result["step_processor_ms"], "planned_peak_bytes": result["planned_peak_bytes"],
                "waited_ms": 0.0}]
    else:
        own = result["per_rank"]
    if in_process:  # these are the process's, which all ranks share
        for rank in own:
            rank["step_processor_ms"] = result["step_processor_ms"] / ranks
            rank["process_peak_bytes"] = result["process_peak_bytes"] / ranks
    return {"step_ms": max(r["step_ms"] for r in own), "processor_ms": sum(r["step_processor_ms"] for r in own), "waited_ms": statistics.mean(r["waited_ms"] for r in own),
            "planned_peak_bytes": own[0]["planned_peak_bytes"],
            "process_peak_bytes": max(r.get("process_peak_bytes", result.get("process_peak_bytes", 0)) for r in own)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ebb")
    parser.add_argument("--python", default=sys.executable, help="one that has PyTorch")
    parser.add_argument("--rounds", type=int, default=5, help="at least 1")
    for name, value in (("steps", 10), ("batch", 8), ("layers", 4), ("width", 256), ("heads", 4), ("sequence", 256), ("vocabulary", 5000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", help="write the result to this file")
    parser.add_argument("--more", action="store_true", help="add rounds to those in the file of --json, which must have the same sizes")
    o = parser.parse_args()
    sizes = {name: value for name, value in vars(o).items() if isinstance(value, int) and name not in ("rounds", "more")}
    sides = {
        "ebb, 1 rank of 2 cores": lambda: ebb_ranks(o.ebb, 1, 2, 0, o),
        "ebb, 2 ranks, shard 0": lambda: ebb_ranks(o.ebb, 2, 1, 0, o),
        "ebb, 2 ranks in one process, shard 0": lambda: ebb_ranks(o.ebb, 2, 1, 0, o, in_process=True),
        "ebb, 2 ranks, shard 1": lambda: ebb_ranks(o.ebb, 2, 1, 1, o),
        "ebb, 2 ranks, shard 3": lambda: ebb_ranks(o.ebb, 2, 1, 3, o),
        "PyTorch, 1 process of 2 cores": lambda: torch_ranks(o.python, "alone", 1, 2, o),
        "PyTorch DDP, 2 ranks": lambda: torch_ranks(o.python, "ddp", 2, 1, o),
        "PyTorch FSDP2, 2 ranks": lambda: torch_ranks(o.python, "fsdp2", 2, 1, o),
    }
    rounds = {name: [] for name in sides}
    if o.more:
        before = json.loads(Path(o.json).read_text(encoding="utf-8"))
        if before["sizes"] != sizes:
            sys.exit(f"{o.json} has rounds of other sizes: {before['sizes']}")
        rounds = before["rounds"]
    for number in range(o.rounds):
        this = {name: run() for name, run in sides.items()}  # a round counts when it is complete
        for name, result in this.items():
            rounds[name].append(result)
        print(f"round {number + 1} of {o.rounds}", file=sys.stderr)
        table = {name: {key: statistics.median(r[key] for r in all) for key in all[0]} for name, all in rounds.items()}
        for name, row in table.items():
            row["fastest_step_ms"] = min(r["step_ms"] for r in rounds[name])
        if o.json:
            Path(o.json).write_text(json.dumps({"sizes": sizes, "runs": table, "rounds": rounds}, indent=1), encoding="utf-8")
    mib = 1 << 20
    print("| run | step, ms | fastest round | processor time of a step, all ranks, ms | resident peak of a rank, MiB | of it for training, MiB |\n"
          "|---|---|---|---|---|---|")
    for name, row in table.items():
        own = row["planned_peak_bytes" if "planned_peak_bytes" in row else "above_idle_bytes"]
        print(f"| {name} | {row['step_ms']:.0f} | {row['fastest_step_ms']:.0f} | {row['processor_ms']:.0f} | {row['process_peak_bytes'] / mib:.0f} | {own / mib:.0f} |")
    def ratio(above, below, key):
        return table[above][key] / table[below][key]

    one, ddp, fsdp = "ebb, 1 rank of 2 cores", "PyTorch DDP, 2 ranks", "PyTorch FSDP2, 2 ranks"
    for name in ("ebb, 2 ranks, shard 0", "ebb, 2 ranks in one process, shard 0"):
        print(f"\n{name}: {ratio(one, name, 'step_ms'):.3f} of the throughput of one rank with two cores "
              f"({ratio(one, name, 'fastest_step_ms'):.3f} by the fastest rounds, {ratio(one, name, 'processor_ms'):.3f} by processor time)")
    for name, other in (("ebb, 2 ranks, shard 0", ddp), ("ebb, 2 ranks, shard 3", fsdp)):
        print(f"{name} beside {other}: {ratio(name, other, 'step_ms'):.2f} of the time, "
              f"{ratio(name, other, 'process_peak_bytes'):.2f} of a rank's resident peak, "
              f"{table[name]['planned_peak_bytes'] / table[other]['above_idle_bytes']:.2f} of what is for training")


if __name__ == "__main__":
    main()
