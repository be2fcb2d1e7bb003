#!/usr/bin/env python3
"""Compares attention on a GPU with PyTorch's: forward and backward of every shape, by ebb_attention_bench and by
scaled_dot_product_attention with cuDNN's and FlashAttention's kernels, for float32 with its memory-efficient one.

usage: attention.py BENCH [--set speed|sizes|float32] [--dtype bfloat16|float16|float32] [--dropout P] [--out FILE]
       BENCH: the program ebb_attention_bench
Prints a table; --out writes the numbers as JSON.
"""
import argparse
import json
import statistics
import subprocess

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SETS = {
    # The same number of scores in all; and the attention of a Llama.
    "speed": ["4x2048x16x4x128:causal"] +
             [f"{32768 // t}x{t}x16x16x{d}:{mask}" for d in (128, 64) for t in (2048, 4096, 8192, 16384)
              for mask in ("causal", "full")],
    # Sizes and batches between those.
    "sizes": [f"4x4096x16x16x{d}:{mask}" for d in (64, 72, 80, 96, 104, 112, 128) for mask in ("causal", "full")] +
             [f"{b}x2000x12x4x{d}:causal" for b in (1, 3) for d in (80, 96, 128)],
    # BERT-base and GPT-2; every size at two lengths; heads above 128.
    "float32": ["32x512x12x12x64:full", "16x1024x12x12x64:causal"] +
               [f"{16384 // t}x{t}x16x16x{d}:{mask}" for d in (32, 64, 80, 128, 256) for t in (512, 4096)
                for mask in ("causal", "full")],
}
PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
FLOAT32_PEERS = {"efficient": SDPBackend.EFFICIENT_ATTENTION}


def milliseconds(work, runs=20):
    for _ in range(3):
        work()
    times = []
    for _ in range(runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def peer(backend, case, dtype, dropout):
    sizes, mask = case.split(":")
    b, t, h, kv, d = map(int, sizes.split("x"))
    number = lambda heads: torch.randn(b, t, heads, d, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()
    q, k, v, g = number(h), number(kv), number(kv), number(h).detach()
    with sdpa_kernel(backend):
        attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal", dropout_p=dropout,
                                                        enable_gqa=h != kv)
        forward = milliseconds(attend)
        o = attend()
        backward = milliseconds(lambda: torch.autograd.grad(o, (q, k, v), g, retain_graph=True))
    product = 2 * b * h * d * t * t * (0.5 if mask == "causal" else 1) * 1e-9
    return {"forward_ms": forward, "backward_ms": backward, "forward_tflops": 2 * product / forward,
            "backward_tflops": 5 * product / backward}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("--set", choices=SETS, default="speed")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--out")
    args = parser.parse_args()
    rows = []
    peers = FLOAT32_PEERS if args.dtype == "float32" else PEERS
    columns = ["ebb", *peers]
    print(f"{'TFLOP/s':28}" + "".join(f"{c + ' fwd':>12}{c + ' bwd':>12}" for c in columns))
    for case in SETS[args.set]:
        done = subprocess.run([args.bench, "--dtype", args.dtype, "--dropout", str(args.dropout), case], check=True, capture_output=True, text=True)
        row = {"case": case, "dtype": args.dtype, "ebb": json.loads(done.stdout)}
        for name, backend in peers.items():
            try:
                row[name] = peer(backend, case, getattr(torch, args.dtype), args.dropout)
            except RuntimeError as error:  # a kernel that does not take this shape
                row[name] = {"error": str(error).splitlines()[0]}
            torch.cuda.empty_cache()
        rows.append(row)
        print(f"{case:28}" + "".join(f"{row[c].get('forward_tflops', 0):12.0f}{row[c].get('backward_tflops', 0):12.0f}"
                                     for c in columns), flush=True)
    if args.out:
        with open(args.out, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__,
                       "cudnn": torch.backends.cudnn.version(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
