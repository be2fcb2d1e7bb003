#!/usr/bin/env python3
"""Writes tests/golden/optimizers/runs.json: the results of other implementations for a few steps of each optimizer, for
tests/optimizer_test.cpp to compare with.

Run by a developer when a case is added, never by the build. Needs PyTorch, transformers and bitsandbytes (its CPU kernels):
  python3 tools/make_golden_optimizers.py tests/golden/optimizers/runs.json

The file is {"versions": {...}, "maps": {...}, "cases": [case, ...]}. `maps` holds the values that codes of quantised state
stand for. A case holds
  name        unique, for messages
  optimizer   its name in ebb, and `options` what differs from ebb's defaults
  source      whose numbers these are
  dtype       float64 or float32: what they were computed in
  shape, parameter, gradients   where the run starts, and a gradient for each step
  scales      what each step multiplies its gradient with, when that is not 1
  after       the parameter after the last step
  state       state tensors after it, by ebb's names
Numbers are in row-major order, as the shortest text that reads back the same.
"""
import json
import math
import sys
from pathlib import Path

import bitsandbytes
import bitsandbytes.backends.cpu.ops as bitsandbytes_cpu
import bitsandbytes.functional as bnb
import numpy as np
import torch
import transformers
from transformers.optimization import Adafactor as PublishedAdafactor

torch.set_num_threads(1)
random = np.random.default_rng(7)
cases = []


def numbers(values):
    """Integers as such; floats of either width by the shortest text of their own width."""
    values = np.asarray(values).reshape(-1)
    if values.dtype.kind in "ui":
        return values.tolist()
    return [float(np.format_float_scientific(v, unique=True, trim="0")) for v in values]


def problem(shape, steps, dtype, spread):
    """A parameter and gradients. With `spread`, gradients of one tensor span that many decades, as those of real networks
    do; signs and sizes persist from step to step."""
    parameter = random.normal(size=shape).astype(dtype)
    scale = 10.0 ** random.uniform(-spread, 0.0, size=shape)
    drift = random.normal(size=shape)
    gradients = [(scale * (0.5 * drift + random.normal(size=shape))).astype(dtype) for _ in range(steps)]
    return parameter, gradients


def add(name, optimizer, options, source, start, run, scales=None):
    parameter, gradients = start
    scaled = [g * g.dtype.type(s) for g, s in zip(gradients, scales)] if scales else gradients
    after, state = run(parameter.copy(), scaled)
    case = {"name": name, "optimizer": optimizer, "options": options, "source": source,
            "dtype": str(parameter.dtype), "shape": list(parameter.shape), "parameter": numbers(parameter),
            "gradients": [numbers(g) for g in gradients], "after": numbers(after),
            "state": {key: {"shape": list(np.shape(value)), "values": numbers(value)} for key, value in state.items()}}
    if scales:
        case["scales"] = scales
    cases.append(case)


def by_torch(make, names):
    """Runs a PyTorch optimizer; `names` maps ebb's names of state to its own, or to a function of its state."""
    def run(start, gradients):
        p = torch.nn.Parameter(torch.from_numpy(start.copy()))
        optimizer = make([p])
        for g in gradients:
            p.grad = torch.from_numpy(g.copy())
            optimizer.step()
        kept = optimizer.state[p]
        return p.detach().numpy(), {name: (of(kept) if callable(of) else kept[of]).detach().numpy() for name, of in names.items()}
    return run


# --- Adam and gradient descent

f64 = np.float64
for name, options, make in [
        ("adam", {"weight_decay": 0.1}, lambda p: torch.optim.Adam(p, weight_decay=0.1)),
        ("adamw", {"lr": 0.01, "beta1": 0.8, "eps": 1e-6},
         lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.999), eps=1e-6))]:
    add(name, name, options, "torch.optim", problem((4, 5), 4, f64, 2), by_torch(make, {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}))
add("sgd", "sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, "torch.optim", problem((4, 5), 4, f64, 2),
    by_torch(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
             {"momentum_buffer": "momentum_buffer"}))

# --- Adafactor

# torch.optim's state keeps the reduced axis.
torch_factors = {"exp_avg_sq_row": lambda s: s["row_var"].squeeze(-1), "exp_avg_sq_col": lambda s: s["col_var"].squeeze(-2)}
published_factors = {"exp_avg_sq_row": "exp_avg_sq_row", "exp_avg_sq_col": "exp_avg_sq_col"}
whole = {"exp_avg_sq": lambda s: s["variance"]}

for shape, names in [((6, 5), torch_factors), ((2, 3, 4), torch_factors), ((7,), whole)]:
    add(f"adafactor of torch, {len(shape)} axes", "adafactor", {"weight_decay": 0.1, "decay_by_step": False}, "torch.optim",
        problem(shape, 5, f64, 2), by_torch(lambda p: torch.optim.Adafactor(p, lr=0.01, weight_decay=0.1), names))
add("adafactor of torch, larger rate", "adafactor", {"lr": 0.9, "clip_threshold": 1.1, "beta2_decay": -0.5, "decay_by_step": False},
    "torch.optim", problem((5, 8), 5, f64, 1), by_torch(lambda p: torch.optim.Adafactor(p, lr=0.9, d=1.1, beta2_decay=-0.5), torch_factors))
add("adafactor as published", "adafactor", {"weight_decay": 0.1}, "transformers", problem((6, 5), 5, f64, 2),
    by_torch(lambda p: PublishedAdafactor(p, weight_decay=0.1), published_factors))
add("adafactor with warm-up and momentum", "adafactor", {"warm_up": True, "beta1": 0.9}, "transformers", problem((3, 2, 4), 5, f64, 2),
    by_torch(lambda p: PublishedAdafactor(p, warmup_init=True, beta1=0.9), published_factors | {"exp_avg": "exp_avg"}))
add("adafactor for fine-tuning", "adafactor", {"lr": 1e-3, "relative_step": False, "scale_by_parameter": False, "clip_threshold": 0.4}, "transformers",
    problem((6, 5), 5, f64, 2),
    by_torch(lambda p: PublishedAdafactor(p, lr=1e-3, relative_step=False, scale_parameter=False, clip_threshold=0.4), published_factors))
add("adafactor of a small vector", "adafactor", {"beta1": 0.8}, "transformers",
    tuple([1e-4 * x if i == 0 else x for i, x in enumerate(problem((9,), 4, f64, 2))]),
    by_torch(lambda p: PublishedAdafactor(p, beta1=0.8), {"exp_avg_sq": "exp_avg_sq", "exp_avg": "exp_avg"}))

# --- 8 bits, by bitsandbytes


def nearest(values, table):
    return np.abs(values[:, None] - table[None, :].astype(values.dtype)).argmin(1)


def quantise(moment, table, absmax, codes, block):
    """To the nearest value of the table. bitsandbytes 0.50's own CPU kernel is coarser than its table below about 2e-5 of
    a block's largest magnitude, unlike its CUDA kernel and the paper; so this stands in for it."""
    moment, table = moment.numpy().reshape(-1), table.numpy()
    for b in range(absmax.numel()):
        part = moment[b * block:(b + 1) * block]
        absmax[b] = float(np.abs(part).max())
        codes.view(-1)[b * block:(b + 1) * block] = torch.from_numpy(nearest(part / np.float32(absmax[b]), table).astype(np.uint8))


bitsandbytes_cpu._quant_blockwise_fp32_direct = quantise


def by_bitsandbytes(make):
    return by_torch(make, {"exp_avg.codes": lambda s: s["state1"].reshape(-1), "exp_avg.absmax": "absmax1",
                           "exp_avg_sq.codes": lambda s: s["state2"].reshape(-1), "exp_avg_sq.absmax": "absmax2"})


f32 = np.float32
add("adamw8bit", "adamw8bit", {"lr": 0.01, "weight_decay": 0.1}, "bitsandbytes", problem((5, 61), 4, f32, 2),
    by_bitsandbytes(lambda p: bitsandbytes.optim.AdamW8bit(p, lr=0.01, weight_decay=0.1, min_8bit_size=0)))
add("adam8bit", "adam8bit", {"beta2": 0.95}, "bitsandbytes", problem((256,), 4, f32, 2),
    by_bitsandbytes(lambda p: bitsandbytes.optim.Adam8bit(p, betas=(0.9, 0.95), min_8bit_size=0)), scales=[0.5, 2.0, 1.0, 0.25])

# --- What no library here has: the papers' algorithms written down


def lion(lr, beta1, beta2, decay):
    """Chen et al., 2023, algorithm 2."""
    def run(p, gradients):
        m = np.zeros_like(p)
        for g in gradients:
            p = p - lr * (np.sign(beta1 * m + (1 - beta1) * g) + decay * p)
            m = beta2 * m + (1 - beta2) * g
        return p, {"exp_avg": m}
    return run


add("lion", "lion", {"lr": 0.01, "weight_decay": 0.1}, "the paper", problem((4, 5), 4, f64, 2), lion(0.01, 0.9, 0.99, 0.1))


def lomo(lr, value=math.inf, norm=math.inf):
    """Lv et al., 2023: gradient descent, each gradient clipped by itself."""
    def run(p, gradients):
        for g in gradients:
            g = g * min(1.0, norm / (np.linalg.norm(g) + 1e-6))
            p = p - lr * np.clip(g, -value, value)
        return p, {}
    return run


add("lomo", "lomo", {}, "the paper", problem((4, 5), 3, f64, 1), lomo(1e-3))
add("lomo with clipped values", "lomo", {"lr": 0.1, "clip_value": 0.2}, "the paper", problem((4, 5), 3, f64, 1), lomo(0.1, value=0.2))
add("lomo with clipped norm", "lomo", {"lr": 0.1, "clip_parameter_norm": 0.7}, "the paper", problem((4, 5), 3, f64, 1), lomo(0.1, norm=0.7),
    scales=[1.0, 0.5, 2.0])

signed4 = bnb.create_dynamic_map(True, 3, 4).numpy()
signed4 = np.sort(signed4[np.concatenate([[True], np.diff(signed4) != 0])])  # bitsandbytes fills up to 256 with zeros
linear4 = np.linspace(0.0, 1.0, 17, dtype=f32)[1:]


def quantised_adamw(lr, beta1, beta2, eps, decay, block, signed, unsigned):
    """Li et al., 2023, algorithm 1, with blocks for both moments, in float32 as AdamW computes."""
    def run(p, gradients):
        n = p.size
        blocks = -(-n // block)
        index = np.arange(n) // block
        codes = [np.full(n, np.flatnonzero(signed == 0)[0]), np.zeros(n, int)]
        absmax = [np.zeros(blocks, f32), np.zeros(blocks, f32)]
        for t, g in enumerate(gradients, 1):
            x, g = p.reshape(-1), g.reshape(-1)
            m = f32(beta1) * signed[codes[0]] * absmax[0][index] + f32(1 - beta1) * g
            v = f32(beta2) * unsigned[codes[1]] * absmax[1][index] + f32(1 - beta2) * g * g
            step = f32(lr / (1 - beta1**t)) * m / (np.sqrt(v) / f32(math.sqrt(1 - beta2**t)) + f32(eps))
            p = (x * f32(1 - lr * decay) - step).reshape(p.shape)
            for k, (moment, table) in enumerate([(m, signed), (v, unsigned)]):
                absmax[k] = np.array([np.abs(moment[index == b]).max() for b in range(blocks)], f32)
                codes[k] = nearest(moment / absmax[k][index], table)
        packed = [np.append(c, [0] * (n % 2)).astype(np.uint8).reshape(-1, 2) for c in codes]
        packed = [pair[:, 0] | pair[:, 1] << 4 for pair in packed]
        return p, {"exp_avg.codes": packed[0], "exp_avg.absmax": absmax[0],
                   "exp_avg_sq.codes": packed[1], "exp_avg_sq.absmax": absmax[1]}
    return run


add("adamw4bit", "adamw4bit", {"lr": 0.01, "weight_decay": 0.1}, "the paper", problem((3, 67), 4, f32, 2),
    quantised_adamw(0.01, 0.9, 0.999, 1e-8, 0.1, 128, signed4, linear4))


def main():
    document = {"versions": {m.__name__: m.__version__ for m in (torch, transformers, bitsandbytes, np)},
                "maps": {"signed8": numbers(bnb.create_dynamic_map(True).numpy()), "unsigned8": numbers(bnb.create_dynamic_map(False).numpy()),
                         "signed4": numbers(signed4), "linear4": numbers(linear4)},
                "cases": cases}
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(document, file, separators=(",", ":"))
        file.write("\n")


main()
