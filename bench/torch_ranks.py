#!/usr/bin/env python3
"""One rank of a training run in PyTorch on the CPU with gloo: the peer of `ebb launch` for bench/ranks.py.

usage: torch_ranks.py ddp|fsdp2|alone THREADS STEPS BATCH LAYERS WIDTH HEADS SEQUENCE VOCABULARY
Ranks find each other by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. BATCH is of one rank. Prints one JSON line per rank: step_ms
(median after 3), processor_ms of a step (user and system), peak and idle RSS."""
import json
import os
import resource
import statistics
import sys
import time

import torch
import torch.distributed as dist

from torch_step import Gpt2


def main():
    kind, (threads, steps, batch, layers, width, heads, sequence, vocabulary) = sys.argv[1], map(int, sys.argv[2:10])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rank = int(os.environ.get("RANK", "0"))
    if kind != "alone":
        dist.init_process_group("gloo")
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    model = Gpt2(vocabulary, sequence, layers, heads, width)
    parameters = sum(p.numel() for p in model.parameters())
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    torch.manual_seed(1 + rank)
    data = torch.randint(0, vocabulary, (batch, sequence)), torch.randint(0, vocabulary, (batch, sequence))
    times, processor = [], []
    for _ in range(steps):
        if kind != "alone":
            dist.barrier()
        begin, own = time.perf_counter(), time.process_time()
        loss = model(*data)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(1e3 * (time.perf_counter() - begin))
        processor.append(1e3 * (time.process_time() - own))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"rank": rank, "torch": torch.__version__, "step_ms": statistics.median(times[3:] or times),
                      "processor_ms": statistics.median(processor[3:] or processor), "process_peak_bytes": peak,
                      "above_idle_bytes": peak - idle, "params": parameters}), flush=True)
    if kind != "alone":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
