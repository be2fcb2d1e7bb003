#!/usr/bin/env python3
"""Writes tests/golden/*.json: PyTorch's results for every op, with which tests/golden_test.cpp compares.

Run by a developer when a case is added, never by the build:  python3 tools/make_golden.py tests/golden

One file per family of ops, each {"torch": version, "cases": [case, ...]}. A case holds
  op          the row of golden_test.cpp that computes it
  name        unique, for messages
  attributes  numbers and lists the row reads
  inputs      [{shape, dtype, values, grad?}]; float64 stands for "the dtype under test"
  outputs     [{shape, dtype, values, weights?}]
  spread      true when each output element is compared on its own scale, not on its tensor's
`grad` is the gradient of sum(output * weights) over all outputs that have weights. Values are in row-major order; numbers are
the shortest text that reads back to the same float64 (up to 17 digits); infinities and NaN are the strings "inf", "-inf", "nan".

Everything is computed in float64. Inputs are multiples of 1/32 (short texts), and so the same
numbers in float32.
"""
import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

torch.manual_seed(20)
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)  # one order of summation, so that the files come out the same

families: dict[str, list[dict]] = {}
inf, nan = math.inf, math.nan


def grid(t):
    return torch.round(t * 32) / 32


def real(*shape, low=-1.5, high=1.5):
    return grid(torch.rand(shape) * (high - low) + low).requires_grad_()


def fixed(values, shape=None):
    """Given numbers, differentiated in unless some are not finite."""
    t = torch.tensor(values, dtype=torch.float64)
    t = t if shape is None else t.reshape(shape)
    return t.requires_grad_(bool(torch.isfinite(t).all()))


def index(*shape, limit):
    return torch.randint(0, limit, shape)


def boolean(*shape):
    return torch.rand(shape) < 0.5


def numbers(t):
    def one(v):
        if isinstance(v, (bool, int)):
            return int(v)
        if math.isnan(v):
            return "nan"
        if math.isinf(v):
            return "inf" if v > 0 else "-inf"
        return int(v) if v == int(v) and abs(v) < 2**53 and math.copysign(1, v) > 0 else v
    return [one(v) for v in t.detach().contiguous().reshape(-1).tolist()]


def described(t):
    return {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch."), "values": numbers(t)}


def case(family, op, function, *inputs, spread=False, name=None, weight_outputs=None, **attributes):
    """Calls function(*inputs) and records it. `weight_outputs` limits which outputs the gradient is of."""
    outputs = function(*inputs)
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    record = {"op": op, "name": "", "attributes": attributes, "inputs": [described(t) for t in inputs],
              "outputs": [described(t) for t in outputs]}
    if spread:
        record["spread"] = True
    wrt = [i for i, t in enumerate(inputs) if t.requires_grad]
    total = None
    for i, t in enumerate(outputs):
        if wrt and t.is_floating_point() and t.requires_grad and (weight_outputs is None or i in weight_outputs):
            weights = grid(torch.rand(t.shape) * 2 - 1)
            record["outputs"][i]["weights"] = numbers(weights)
            part = (t * weights).sum()
            total = part if total is None else total + part
    if total is not None:
        for i, g in zip(wrt, torch.autograd.grad(total, [inputs[i] for i in wrt], allow_unused=True)):
            record["inputs"][i]["grad"] = numbers(torch.zeros_like(inputs[i]) if g is None else g)
    shapes = " ".join("x".join(map(str, t.shape)) or "scalar" for t in inputs)
    text = " ".join(f"{k}={v}" for k, v in attributes.items())
    record["name"] = " ".join(filter(None, [op, name, text, shapes]))
    cases = families.setdefault(family, [])
    if any(c["name"] == record["name"] for c in cases):
        record["name"] += f" #{sum(c['op'] == op for c in cases)}"
    cases.append(record)


# --- Elementwise

def softplus(x):  # F.softplus returns x itself above its threshold; 100 leaves no visible step
    return F.softplus(x, threshold=100.0)


UNARY = {
    "neg": torch.neg, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "square": torch.square, "abs": torch.abs, "sign": torch.sign, "sin": torch.sin,
    "cos": torch.cos, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "softplus": softplus, "erf": torch.erf,
}
POSITIVE = {"log", "sqrt", "rsqrt", "reciprocal"}
# Far from 0, where naive formulas overflow or lose digits, and at 0.
FAR = {"exp": [-80.0, -20.0, 0.0, 20.0, 80.0], "log": [2.0**-20, 1.0, 1e6], "sqrt": [2.0**-20, 1.0, 1e6],
       "rsqrt": [2.0**-20, 1.0, 1e6], "reciprocal": [-1e6, -2.0**-20, 2.0**-20, 1e6], "sin": [-20.0, 0.0, 20.0],
       "cos": [-20.0, 0.0, 20.0]}
# What is not finite, and the edges of domains: values only, as gradients there are conventions.
EDGES = {"log": [0.0, -1.0, inf, nan], "sqrt": [0.0, -1.0, inf, nan], "rsqrt": [0.0, -1.0, inf, nan],
         "reciprocal": [0.0, inf, -inf, nan],
         "sin": [inf, nan], "cos": [-inf, nan],
         # sign(NaN) is 0 in PyTorch; gelu and silu of -inf are NaN in PyTorch's formulas as in the plain ones.
         "sign": [inf, -inf, 0.0]}


def elementwise():
    f = "elementwise"
    for op, function in UNARY.items():
        low, high = (0.25, 3.0) if op in POSITIVE else (-3.0, 3.0)
        case(f, op, function, real(3, 4, low=low, high=high))
        # 1 + erf and 1 + tanh cancel in the negative tail, in PyTorch's float32 as in any by that formula.
        spread = op not in ("gelu", "gelu_tanh")
        case(f, op, function, fixed(FAR.get(op, [-40.0, -12.0, -5.0, 0.0, 5.0, 12.0, 40.0])), name="far", spread=spread)
        case(f, op, function, fixed(EDGES.get(op, [inf, -inf, nan])), name="edges")
    for op, function in {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
                         "maximum": torch.maximum, "minimum": torch.minimum}.items():
        low = 0.5 if op == "div" else -1.5
        for a, b in [((3, 4), (3, 4)), ((2, 3, 4), (3, 1)), ((4,), (2, 1, 1)), ((), (3,))]:
            case(f, op, function, real(*a, low=low), real(*b, low=low))
        case(f, op, function, fixed([0.0, 1.0, inf, -inf, nan, 1.0, -2.0]), fixed([0.0, 0.0, inf, inf, 1.0, nan, 0.0]),
             name="edges")
    for op in ("maximum", "minimum"):  # equals share the gradient
        case(f, op, getattr(torch, op), fixed([1.0, 2.0, 3.0]), fixed([1.0, 3.0, 3.0]), name="ties")
    case(f, "pow", torch.pow, real(3, 4, low=0.25, high=2.0), real(4, low=-2.0, high=2.0))
    case(f, "pow", torch.pow, fixed([0.0, 0.0, 2.0, -2.0, -2.0, inf]), fixed([0.0, 2.0, -inf, 3.0, 0.5, -1.0]), name="edges")
    for exponent in (0.0, 1.0, 2.0, 0.5, -0.5, -1.0, 3.0, -1.75):
        case(f, "pow_scalar", lambda x: torch.pow(x, exponent) + 0.0 * x, real(5, low=0.25, high=2.0), exponent=exponent)
    case(f, "pow_scalar", lambda x: torch.pow(x, 3.0), real(5), exponent=3.0)
    # On the bounds themselves the gradient is a convention, and releases of PyTorch differ: values only.
    case(f, "clamp", lambda x: torch.clamp(x, -0.5, 0.75), fixed([-1.0, -0.25, 0.0, 0.5, 2.0]), low=-0.5, high=0.75)
    case(f, "clamp", lambda x: torch.clamp(x, -0.5, 0.75), fixed([inf, -inf, nan, -0.5, 0.75]), low=-0.5, high=0.75)
    for op, function in {"equal": torch.eq, "not_equal": torch.ne, "less": torch.lt, "less_equal": torch.le,
                         "greater": torch.gt, "greater_equal": torch.ge}.items():
        a, b = [0.0, 1.0, 2.0, inf, -inf, nan, nan], [0.0, 2.0, 1.0, inf, inf, nan, 1.0]
        case(f, op, function, fixed(a), fixed(b))
        case(f, op, function, index(3, 1, limit=3), index(3, limit=3))
    case(f, "logical_and", torch.logical_and, boolean(3, 4), boolean(4))
    case(f, "logical_or", torch.logical_or, boolean(3, 4), boolean(4))
    case(f, "logical_not", torch.logical_not, boolean(6))
    case(f, "where", torch.where, boolean(3, 4), real(4), real(3, 1))
    case(f, "where", torch.where, boolean(3, 4), index(3, 4, limit=9), index(4, limit=9))
    for op, function in {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum}.items():
        case(f, op, function, index(3, 2, limit=50), index(2, limit=50), name="integers")
    s = 0.75  # every operator with a number on either side
    case(f, "scalar_operators", lambda x: (x + s, x - s, x * s, x / s, s + x, s - x, s * x, s / x, -x),
         real(4, low=0.5, high=2.0), scalar=s)
    for dtype in ("int64", "int32", "uint8", "bool"):
        case(f, "cast", lambda x: x.to(getattr(torch, dtype)), fixed([0.0, 0.5, 1.0, 2.75, 100.0]), dtype=dtype)
    case(f, "cast", lambda x: x.to(torch.float64), index(4, limit=9), dtype="float64")
    case(f, "stop_gradient", lambda x: x * (x * x).detach(), real(5))


def making():
    f = "making"
    case(f, "full", lambda: torch.full((2, 3), -2.5), shape=[2, 3], value=-2.5)
    case(f, "zeros", lambda: torch.zeros(2, 3), shape=[2, 3])
    case(f, "ones", lambda: torch.ones(4), shape=[4])
    case(f, "arange", lambda: torch.arange(7), count=7)
    case(f, "zeros_like", torch.zeros_like, index(2, 3, limit=4))
    case(f, "full_like", lambda x: torch.full_like(x, 7), index(2, 3, limit=4), value=7.0)
    case(f, "one_hot", lambda i: F.one_hot(i, 5), index(3, 2, limit=5), classes=5)


# --- Reductions. A list of no axes means all.

def dims(x, axes):
    return tuple(axes) if axes else tuple(range(x.dim()))


def reductions():
    f = "reductions"
    plain = {
        "sum": lambda x, d, k: torch.sum(x, d, keepdim=k), "mean": lambda x, d, k: torch.mean(x, d, keepdim=k),
        "sum_squares": lambda x, d, k: torch.sum(x * x, d, keepdim=k),
        "max": lambda x, d, k: torch.amax(x, d, keepdim=k), "min": lambda x, d, k: torch.amin(x, d, keepdim=k),
        "logsumexp": lambda x, d, k: torch.logsumexp(x, d, keepdim=k),
    }
    for op, function in plain.items():
        for axes, keep in [([], False), ([-1], True), ([0, 2], False)]:
            x = real(2, 3, 4)
            case(f, op, lambda t: function(t, dims(t, axes), keep), x, axes=axes, keep=keep)
        # A longer sum, along an axis that is not the last; and infinities.
        case(f, op, lambda t: function(t, (0,), False), real(30, 2), axes=[0], keep=False)
        case(f, op, lambda t: function(t, (0, 1), False), fixed([[1.0, inf], [2.0, 3.0]]), axes=[0, 1], keep=False, name="inf")
    for op in ("max", "min"):
        case(f, op, lambda t: plain[op](t, (1,), False), fixed([[2.0, 1.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0]]), axes=[1],
             keep=False, name="ties")
        case(f, op, lambda t: plain[op](t, (0,), False), fixed([1.0, nan, 3.0]), axes=[0], keep=False, name="nan")
    case(f, "sum", lambda t: torch.sum(t, (0,)), index(4, 3, limit=99), axes=[0], keep=False, name="integers")
    case(f, "logsumexp", lambda t: torch.logsumexp(t, (1,)), fixed([[1000.0, 999.0, -1000.0], [-900.0, -901.0, -950.0]]),
         axes=[1], keep=False, name="far")
    case(f, "logsumexp", lambda t: torch.logsumexp(t, (1,)), fixed([[-inf, 0.0, -inf], [-inf, -inf, -inf]]), axes=[1],
         keep=False, name="edges")
    for axes, correction, keep in [([], 1, False), ([-1], 0, True), ([0, 2], 1, False)]:
        case(f, "var", lambda t: torch.var(t, dims(t, axes), correction=correction, keepdim=keep), real(2, 3, 4), axes=axes,
             correction=correction, keep=keep)
    # A spread of 1 around 1000: two-pass formulas keep their digits, the difference of squares does not.
    case(f, "var", lambda t: torch.var(t, (1,), correction=0), real(2, 9, low=1000.0, high=1001.0), axes=[1], correction=0,
         keep=False, name="far from 0")
    for p in (1.0, 2.0, 3.0, inf):
        case(f, "norm", lambda t: torch.linalg.vector_norm(t, p, dim=(1,)), real(3, 4),
             p="inf" if p == inf else p, axes=[1], keep=False)
    for shape in ([4], [3, 1], [2, 1, 4], [], [1, 1]):
        case(f, "sum_to", lambda t: t.sum_to_size(shape), real(2, 3, 4), shape=shape)
    for axis, keep in [(0, False), (-1, True), (1, False)]:
        case(f, "argmax", lambda t: torch.argmax(t, axis, keepdim=keep), real(2, 3, 4), axis=axis, keep=keep)
    case(f, "argmax", lambda t: torch.argmax(t, 1), fixed([[1.0, 3.0, 3.0], [2.0, 2.0, 1.0]]).detach(), axis=1, keep=False,
         name="ties")


# --- Shapes and indices

def shapes():
    f = "shapes"
    case(f, "reshape", lambda x: x.reshape(3, -1), real(2, 6), shape=[3, -1])
    case(f, "reshape_transposed", lambda x: x.transpose(0, 1).reshape(3, 8), real(4, 6), shape=[3, 8])
    case(f, "flatten", lambda x: x.flatten(1), real(2, 3, 2), first_axis=1)
    case(f, "permute", lambda x: x.permute(2, 0, 1), real(2, 3, 2), order=[2, 0, 1])
    case(f, "permute", lambda x: x.permute(-1, 0, -2), real(2, 3, 2), order=[-1, 0, -2])
    case(f, "transpose", lambda x: x.transpose(-2, -1), real(2, 3), a=-2, b=-1)
    case(f, "transpose", lambda x: x.transpose(0, 2), real(2, 3, 2), a=0, b=2)
    case(f, "expand", lambda x: x.expand(2, 3, 4), real(3, 1), shape=[2, 3, 4])
    case(f, "squeeze", lambda x: x.squeeze(1), real(3, 1, 2), axis=1)
    case(f, "unsqueeze", lambda x: x.unsqueeze(-1), real(3, 2), axis=-1)
    for axis, begin, end, step in [(1, 1, 6, 2), (0, 0, 3, 1), (-1, 2, 7, 3), (1, 4, 4, 1)]:
        place = [slice(None)] * 2
        place[axis] = slice(begin, end, step)
        case(f, "slice", lambda x: x[tuple(place)], real(4, 7), axis=axis, begin=begin, end=end, step=step)
    case(f, "split", lambda x: x.split([1, 2, 3], 1), real(3, 6), axis=1, sizes=[1, 2, 3])
    case(f, "chunk", lambda x: x.chunk(3, 1), real(2, 6), axis=1, parts=3)
    case(f, "concat", lambda *x: torch.cat(x, 1), real(2, 3), real(2, 1), real(2, 2), axis=1)
    case(f, "concat", lambda *x: torch.cat(x, -2), real(1, 3), real(2, 3), axis=-2)
    case(f, "stack", lambda *x: torch.stack(x, -1), real(2, 3), real(2, 3), axis=-1)
    case(f, "stack", lambda *x: torch.stack(x, 0), real(2), real(2), real(2), axis=0)
    case(f, "pad", lambda x: F.pad(x, (0, 2, 1, 0), value=-1.5), real(2, 3), before=[1, 0], after=[0, 2], value=-1.5)
    case(f, "contiguous", lambda x: x.transpose(0, 1).contiguous(), real(2, 3))
    for axis in (0, 1, -1):
        shape = [3, 4, 2]
        shape[axis] = 5
        limit = [3, 4, 2][axis]
        case(f, "gather", lambda x, i: torch.gather(x, axis, i), real(3, 4, 2), index(*shape, limit=limit), axis=axis)
        case(f, "scatter_add", lambda x, i, s: torch.scatter_add(x, axis, i, s), real(3, 4, 2), index(*shape, limit=limit),
             real(*shape), axis=axis)


# --- Products

def products():
    f = "products"
    def product(a, b, ta, tb):
        return torch.matmul(a.transpose(-1, -2) if ta else a, b.transpose(-1, -2) if tb else b)
    for a, b, ta, tb in [((3, 4), (4, 5), False, False), ((4, 3), (4, 5), True, False), ((3, 4), (5, 4), False, True),
                         ((4, 3), (5, 4), True, True), ((2, 3, 4), (2, 4, 2), False, False),
                         ((1, 3, 4), (2, 4, 2), False, False), ((2, 3, 4), (4, 2), False, False),
                         ((3, 4), (2, 4, 2), False, False), ((2, 1, 3, 4), (3, 2, 4), False, True),
                         ((1, 1), (1, 1), False, False), ((2, 40), (40, 3), False, False)]:
        case(f, "matmul", lambda x, y: product(x, y, ta, tb), real(*a), real(*b), transpose_a=ta, transpose_b=tb)
    case(f, "linear", F.linear, real(3, 4), real(5, 4), real(5))
    case(f, "linear", F.linear, real(2, 3, 4), real(5, 4), real(5))
    case(f, "linear", F.linear, real(2, 3, 4), real(5, 4))


# --- Softmax and normalisation

def rows():
    f = "rows"
    for op, function in {"softmax": torch.softmax, "log_softmax": torch.log_softmax}.items():
        for axis in (-1, 0, 1):
            case(f, op, lambda x: function(x, axis), real(2, 3, 4), axis=axis)
        case(f, op, lambda x: function(x, 1), fixed([[1000.0, 999.0, 990.0], [-1000.0, -1001.0, -1003.0]]), axis=1, name="far")
        case(f, op, lambda x: function(x, 1), fixed([[-inf, 0.0, 1.0]]), axis=1, name="-inf")
    eps = 1e-5
    case(f, "layer_norm", lambda x, w, b: F.layer_norm(x, (6,), w, b, eps), real(2, 3, 6), real(6), real(6), eps=eps)
    case(f, "layer_norm", lambda x, w: F.layer_norm(x, (6,), w, None, eps), real(4, 6), real(6), eps=eps)
    case(f, "layer_norm", lambda x: F.layer_norm(x, (6,), None, None, eps), real(4, 6), eps=eps)
    case(f, "layer_norm", lambda x, w, b: F.layer_norm(x, (5,), w, b, 1e-3), real(2, 5, low=99.0, high=101.0), real(5), real(5),
         eps=1e-3, name="far from 0")
    case(f, "rms_norm", lambda x, w: F.rms_norm(x, (6,), w, eps), real(2, 3, 6), real(6), eps=eps)
    case(f, "rms_norm", lambda x: F.rms_norm(x, (6,), None, eps), real(4, 6), eps=eps)
    for groups in (1, 2, 4):
        case(f, "group_norm", lambda x, w, b: F.group_norm(x, groups, w, b, eps), real(2, 4, 3, 2), real(4), real(4),
             groups=groups, eps=eps)
    # Training mode: normalised by the batch; the running statistics after one update are outputs without gradient.
    def batch_norm(x, w, b, m, v):
        mean, variance = m.clone(), v.clone()
        y = F.batch_norm(x, mean, variance, w, b, training=True, momentum=0.1, eps=eps)
        return y, mean, variance
    for shape in ((3, 4, 2, 2), (5, 4)):
        case(f, "batch_norm_training", batch_norm, real(*shape), real(4), real(4), real(4).detach(),
             real(4, low=0.5).detach(), momentum=0.1, eps=eps)
        case(f, "batch_norm_inference", lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, training=False, eps=eps),
             real(*shape), real(4), real(4), real(4).detach(), real(4, low=0.5).detach(), eps=eps)


# --- Convolution and pooling; (N, C, H, W), weights (out, in / groups, H, W)

def images():
    f = "images"
    for x, w, bias, stride, padding, dilation, groups in [
            ((2, 2, 5, 4), (2, 2, 3, 3), True, [1, 1], [0, 0], [1, 1], 1),
            ((1, 2, 5, 5), (4, 2, 3, 3), True, [2, 2], [1, 1], [1, 1], 1),
            ((1, 2, 6, 5), (2, 2, 2, 3), False, [1, 2], [0, 1], [2, 1], 1),
            ((1, 4, 4, 4), (4, 2, 3, 3), True, [1, 1], [1, 1], [1, 1], 2),
            ((1, 3, 4, 5), (3, 1, 3, 3), True, [1, 1], [1, 1], [1, 1], 3),
            ((2, 3, 3, 3), (2, 3, 1, 1), True, [1, 1], [0, 0], [1, 1], 1),
            ((1, 2, 7, 7), (2, 1, 3, 3), True, [2, 1], [2, 1], [2, 2], 2)]:
        tensors = [real(*x), real(*w)] + ([real(w[0])] if bias else [])
        case(f, "conv2d", lambda *t: F.conv2d(t[0], t[1], t[2] if len(t) > 2 else None, stride, padding, dilation, groups),
             *tensors, stride=stride, padding=padding, dilation=dilation, groups=groups)
    for size, stride, padding in [([2, 2], [2, 2], [0, 0]), ([3, 2], [1, 2], [1, 0]), ([3, 3], [2, 2], [1, 1])]:
        case(f, "max_pool2d", lambda x: F.max_pool2d(x, size, stride, padding), real(1, 2, 5, 4), size=size, stride=stride,
             padding=padding)
        # Padding counts as zeros in the mean, as is PyTorch's default.
        case(f, "avg_pool2d", lambda x: F.avg_pool2d(x, size, stride, padding), real(1, 2, 5, 4), size=size, stride=stride,
             padding=padding)


# --- Embeddings and losses

def losses():
    f = "losses"
    case(f, "embedding", lambda w, i: F.embedding(i, w), real(5, 3), index(2, 4, limit=5))
    case(f, "embedding", lambda w, i: F.embedding(i, w), real(3, 2), index(7, limit=3))
    for reduction in ("mean", "sum", "none"):
        for smoothing in (0.0, 0.1):
            targets = torch.tensor([2, 0, -100, 4, 1])
            case(f, "cross_entropy", lambda x, t: F.cross_entropy(x, t, reduction=reduction, label_smoothing=smoothing,
                                                                  ignore_index=-100),
                 real(5, 5), targets, reduction=reduction, label_smoothing=smoothing, ignore_index=-100)
        case(f, "nll_loss", lambda x, t: F.nll_loss(x, t, reduction=reduction, ignore_index=3), real(4, 5),
             torch.tensor([1, 3, 0, 2]), reduction=reduction, ignore_index=3)
        case(f, "mse_loss", lambda x, y: F.mse_loss(x, y, reduction=reduction), real(3, 4), real(3, 4), reduction=reduction)
        case(f, "bce_with_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction=reduction), real(3, 4),
             real(3, 4, low=0.0, high=1.0), reduction=reduction)
    case(f, "cross_entropy", lambda x, t: F.cross_entropy(x, t), fixed([[1000.0, -1000.0, 0.0], [500.0, 500.0, 499.0]]),
         torch.tensor([1, 2]), reduction="mean", label_smoothing=0.0, ignore_index=-100, name="far")
    case(f, "bce_with_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
         fixed([-200.0, -30.0, 0.0, 30.0, 200.0]), fixed([0.0, 1.0, 0.5, 0.0, 1.0]), reduction="none", name="far")
    # Cross entropy of x · weightᵀ, as a fused loss that never holds all logits must give.
    for reduction in ("mean", "sum"):
        case(f, "linear_cross_entropy", lambda x, w, t: F.cross_entropy(x @ w.t(), t, reduction=reduction, ignore_index=-100),
             real(6, 4), real(7, 4), torch.tensor([0, 6, 3, -100, 2, 1]), reduction=reduction, ignore_index=-100,
             label_smoothing=0.0)
    case(f, "linear_cross_entropy", lambda x, w, t: F.cross_entropy(x @ w.t(), t, label_smoothing=0.1), real(6, 4), real(7, 4),
         index(6, limit=7), reduction="mean", ignore_index=-100, label_smoothing=0.1)


# --- Attention: (batch, heads, time, width)

def attention():
    f = "attention"
    def attend(q, k, v, mask=None, causal=False, grouped=False, scale=None):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped)
    q, k, v = (1, 2, 4, 3), (1, 2, 4, 3), (1, 2, 4, 3)
    op = "scaled_dot_product_attention"
    case(f, op, lambda *t: attend(*t), real(*q), real(*k), real(*v), causal=False)
    case(f, op, lambda *t: attend(*t, causal=True), real(*q), real(*k), real(*v), causal=True)
    case(f, op, lambda *t: attend(*t, scale=0.25), real(*q), real(*k), real(*v), causal=False, scale=0.25)
    case(f, op, lambda *t: attend(*t), real(1, 2, 3, 2), real(1, 2, 5, 2), real(1, 2, 5, 2), causal=False, name="longer keys")
    # Added to the scores, and as booleans (true: may look).
    case(f, op + "_masked", lambda *t: attend(*t), real(*q), real(*k), real(*v), real(4, 4).detach(), name="added")
    mask = torch.rand(1, 1, 4, 4) < 0.6
    mask |= torch.eye(4, dtype=torch.bool)  # every query sees a key
    case(f, op + "_masked", lambda *t: attend(*t), real(*q), real(*k), real(*v), mask, name="boolean")
    for causal in (False, True):
        case(f, op, lambda *t: attend(*t, causal=causal, grouped=True), real(1, 4, 3, 2), real(1, 2, 3, 2), real(1, 2, 3, 2),
             causal=causal, name="grouped")

    # Rotary position embedding of x (batch, heads, time, width): elements i and i + width / 2 are turned by the angle
    # position / base^(2i / width), as Llama does in transformers.
    def rotary(x, base, first):
        half = x.shape[-1] // 2
        angles = torch.outer(torch.arange(first, first + x.shape[-2], dtype=torch.float64),
                             base ** (-torch.arange(half, dtype=torch.float64) / half))
        cos, sin = torch.cos(angles), torch.sin(angles)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    for first in (0, 3):
        case(f, "rotary", lambda x: rotary(x, 10000.0, first), real(1, 2, 3, 6), base=10000.0, first_position=first)


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden")
    for fill in (elementwise, making, reductions, shapes, products, rows, images, losses, attention):
        fill()
    total = 0
    for family, cases in families.items():
        lines = ",\n".join(json.dumps(c, separators=(",", ":"), allow_nan=False) for c in cases)
        text = f'{{"torch":"{torch.__version__.split("+")[0]}","cases":[\n{lines}\n]}}\n'
        (folder / f"{family}.json").write_text(text)
        total += len(text)
    print(f"{sum(map(len, families.values()))} cases, {total / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
