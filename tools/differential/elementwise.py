"""Elementwise functions, conversions and tensors made from numbers."""
import itertools
import math

import torch
import torch.nn.functional as F

from .recording import *

UNARY = {
    "neg": torch.neg, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "square": torch.square, "abs": torch.abs, "sign": torch.sign, "sin": torch.sin,
    "cos": torch.cos, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "softplus": F.softplus, "erf": torch.erf,
}
OF_INTEGERS = ("neg", "square", "abs", "sign", "relu")
BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
          "maximum": torch.maximum, "minimum": torch.minimum}
COMPARISONS = {"equal": torch.eq, "not_equal": torch.ne, "less": torch.lt, "less_equal": torch.le,
               "greater": torch.gt, "greater_equal": torch.ge}
PAIRS = [((), ()), ((3,), ()), ((2, 3), (3,)), ((2, 1, 3), (4, 1)), ((0, 3), (1, 3)), ((1,), (0,)), ((2, 1, 1, 2, 1), (2, 1, 3)),
         ((1, 1, 1, 1, 1, 1, 1, 2), (2, 1, 1, 1, 1, 1, 1, 1))]
NO_PROMOTION = "dtypes are not promoted; cast() says what is meant"


def unary():
    for op, function in UNARY.items():
        low = 0.25 if op in ("log", "sqrt", "rsqrt", "reciprocal") else -3.0
        for dtype in FLOATS:
            for shape in SHAPES:
                case(op, function, real(shape, dtype, low, 3.0))
            case(op, function, fixed(EDGES, dtype))
        for dtype in (i64, i32):
            if op in OF_INTEGERS:
                case(op, function, fixed([0, 1, -1, 7, -2000], dtype))
                case(op, function, whole((2, 0), dtype))
            else:
                refused(op, [whole((3,), dtype)], NO_PROMOTION)
        refused(op, [boolean((3,))], "booleans have no arithmetic")


def binary():
    edges = fixed(EDGES)
    for op, function in BINARY.items():
        low = 0.25 if op in ("div", "pow") else -1.5
        for dtype in FLOATS:
            for a, b in PAIRS:
                case(op, function, real(a, dtype, low), real(b, dtype, low))
            case(op, function, edges.reshape(-1, 1).to(dtype), edges.to(dtype), derivatives=1)
        for dtype in INTEGERS:
            if op in ("div", "pow"):
                refused(op, [whole((3,), dtype, 1), whole((3,), dtype, 1)], NO_PROMOTION)
                continue
            for a, b in PAIRS[:5]:
                case(op, function, whole(a, dtype), whole(b, dtype))
        case(op, function, fixed([200, 255, 7], u8), fixed([100, 255, 9], u8)) if op not in ("div", "pow") else None
        refused(op, [real((3,)), real((3,), f32)], NO_PROMOTION)
        refused(op, [whole((3,)), real((3,))], NO_PROMOTION)
        refused(op, [boolean((3,)), boolean((3,))], "booleans have no arithmetic")
        case(op, function, real((2, 3)), real((2,)))
        case(op, function, real((0,)), real((2,)))
    ties = fixed([1.0, 2.0, 3.0, -0.0, 0.0])
    for op in ("maximum", "minimum"):
        case(op, BINARY[op], ties, fixed([1.0, 3.0, 2.0, 0.0, -0.0]))


def selection():
    edges = fixed(EDGES)
    for op, function in COMPARISONS.items():
        for dtype in FLOATS:
            case(op, function, edges.reshape(-1, 1).to(dtype), edges.to(dtype), derivatives=0)
        for dtype in (*INTEGERS, b8):
            for a, b in PAIRS[:5]:
                case(op, function, anything(a, dtype), anything(b, dtype))
        refused(op, [whole((3,)), whole((3,), i32)], NO_PROMOTION)
    for op in ("logical_and", "logical_or"):
        for (a, b), _ in itertools.product(PAIRS, range(4)):
            case(op, getattr(torch, op), boolean(a), boolean(b))
        refused(op, [whole((3,)), whole((3,))], "logic is of booleans; not_equal() makes them")
    for shape, _ in itertools.product(SHAPES, range(4)):
        case("logical_not", torch.logical_not, boolean(shape))
    for dtype in (*FLOATS, *INTEGERS, b8):
        for condition, (a, b) in itertools.product([(), (2, 1, 3), (0, 1)], [((), ()), ((3,), (4, 1)), ((2, 4, 3), (1, 3))]):
            case("where", torch.where, boolean(condition), anything(a, dtype), anything(b, dtype))
    case("where", torch.where, fixed([0, 1], b8), fixed([nan, inf]), fixed([1.0, 2.0]))
    refused("where", [whole((3,)), real((3,)), real((3,))], "the condition is boolean")
    refused("where", [boolean((3,)), real((3,)), whole((3,))], NO_PROMOTION)
    bounds = [(-0.5, 0.75), (-1.0, 1.0), (0.0, 0.0), (1.0, -1.0), (-inf, inf), (nan, 1.0), (0.0, nan), (-inf, 0.5)]
    for dtype, (low, high) in itertools.product(FLOATS, bounds):
        text = {k: v if math.isfinite(v) else str(v) for k, v in {"low": low, "high": high}.items()}
        case("clamp", lambda x: torch.clamp(x, low, high), fixed(EDGES, dtype), **text)
        case("clamp", lambda x: torch.clamp(x, low, high), real((2, 0), dtype), **text)
    refused("clamp", [whole((3,))], "clamp is of floating point", low=0.0, high=1.0)


def scalars():
    operators = lambda x, s: (x + s, x - s, x * s, x / s, s + x, s - x, s * x, s / x, -x)
    arithmetic = lambda x, s: (x + s, x - s, x * s, s + x, s - x, s * x)
    for s in (0.75, 2.0, -1.0, 0.1, 1 / 3, 1e6, 1e-8, 7e4, 0.0, inf, nan):
        for dtype in FLOATS:
            text = s if math.isfinite(s) else str(s)
            overflows = dtype == f16 and abs(s) > 65504 and math.isfinite(s)  # gradients are sums that meet both infinities
            case("scalar_operators", lambda x: operators(x, s), real((2, 3), dtype, 0.5, 2.0), scalar=text,
                 derivatives=0 if overflows else None)
            # PyTorch multiplies halves by a number in float32, but adds it as a half, which may be infinite.
            if abs(s) not in (1e6, 7e4, 1e-8):
                case("scalar_operators", lambda x: operators(x, s), fixed(EDGES, dtype), derivatives=1, scalar=text)
    for dtype in INTEGERS:
        for s in (0, 1, 2, 7):
            case("scalar_arithmetic", lambda x: arithmetic(x, s), whole((2, 3), dtype, 10, 20), scalar=s)
        for s in (0.5, -0.25, "nan", "inf", 1e30):
            refused("scalar_arithmetic", [whole((3,), dtype)], NO_PROMOTION, scalar=s)
    for dtype, s in ((u8, -1), (u8, 300), (i32, 2**31), (i64, 2.0**63)):
        refused("scalar_arithmetic", [whole((3,), dtype)], "the dtype cannot hold the number", scalar=s)
    for exponent in (0.0, 1.0, 2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 1.75, -1.75, inf, -inf, nan):
        text = exponent if math.isfinite(exponent) else str(exponent)
        for dtype in FLOATS:
            case("pow_scalar", lambda x: torch.pow(x, exponent), real((2, 3), dtype, 0.25, 2.0), exponent=text)
            # A root of -inf or -0 is that of sqrt in some dtypes of PyTorch's and that of pow in others.
            edges = [v for v in EDGES if abs(exponent) != 0.5 or not math.copysign(1, v) < 0 or v > -inf and v != 0]
            case("pow_scalar", lambda x: torch.pow(x, exponent), fixed(edges, dtype), derivatives=1, exponent=text)
    for exponent in (0.5, -1.0, 3.0):
        refused("pow_scalar", [whole((3,))], NO_PROMOTION, exponent=exponent)


def conversion():
    every = (*FLOATS, *INTEGERS, b8)
    for source, target in itertools.product(every, every):
        case("cast", lambda x: x.to(target), anything((2, 3), source).abs() if source != b8 else boolean((2, 3)),
             derivatives=1 if target.is_floating_point else 0, dtype=name_of(target))
        case("cast", lambda x: x.to(target), anything((0, 2), source), derivatives=0, dtype=name_of(target))
    values = [0.0, -0.0, 0.5, 1.0, 2.75, 100.0, 254.5]
    for source in FLOATS:
        for target in (i64, i32, u8):
            case("cast", lambda x: x.to(target), fixed(values, source), derivatives=0, dtype=name_of(target))
        case("cast", lambda x: x.to(i64), fixed([-0.5, -1.5, -3.0], source), derivatives=0, dtype="int64")
        for target in (*FLOATS, b8):
            case("cast", lambda x: x.to(target), fixed([*EDGES, 7e4, 1e-7, 3.4e38], source), derivatives=0, dtype=name_of(target))
    for source, target in itertools.product(INTEGERS, INTEGERS):  # what does not fit keeps its lowest bits
        case("cast", lambda x: x.to(target), torch.tensor([0, 1, 200, 255], dtype=source), dtype=name_of(target))
    case("cast", lambda x: x.to(i32), torch.tensor([2**31, -1, 2**40 + 5]), dtype="int32")
    case("cast", lambda x: x.to(u8), torch.tensor([256, -1, 511]), dtype="uint8")
    for shape, dtype in itertools.product(SHAPES[:6], FLOATS):
        case("stop_gradient", lambda x: x * (x * x).detach(), real(shape, dtype))


def making():
    for dtype, shape in itertools.product((*FLOATS, *INTEGERS, b8), SHAPES):
        name = name_of(dtype)
        case("full_of", lambda: torch.full(shape, 3, dtype=dtype), shape=shape, value=3, dtype=name)
        case("full_like", lambda x: torch.full_like(x, 1), anything(shape, dtype), derivatives=0, value=1)
        case("zeros_like", torch.zeros_like, anything(shape, dtype), derivatives=0)
    for dtype, value in itertools.product(FLOATS, (0.1, -2.5, 1e6, 1e-9, inf, nan)):
        case("full_of", lambda: torch.full((2,), value, dtype=dtype), shape=[2], dtype=name_of(dtype),
             value=value if math.isfinite(value) else str(value))
    for dtype, value in itertools.product(INTEGERS, (0.5, "nan", "inf", 1e30)):
        refused("full_of", why="the dtype cannot hold the number", shape=[2], value=value, dtype=name_of(dtype))
    refused("full_of", why="the dtype cannot hold the number", shape=[2], value=300, dtype="uint8")
    for dtype, value in ((f32, 1e39), (bf16, -1e39), (f16, 7e4)):
        case("full_of", lambda: torch.full((2,), value, dtype=dtype), shape=[2], value=value, dtype=name_of(dtype))
        case("full_like", lambda x: torch.full_like(x, value), real((2,), dtype), value=value)
    refused("full_of", shape=[-1], value=1, dtype="float32")
    for dtype, count in itertools.product((*FLOATS, i64, i32), (0, 1, 2, 7, 30)):
        case("arange_of", lambda: torch.arange(count, dtype=dtype), count=count, dtype=name_of(dtype))
    refused("arange_of", count=-1, dtype="int64")
    for shape, classes in itertools.product([(), (1,), (4,), (2, 0), (2, 3), (2, 1, 3)], (1, 5)):
        index = whole(shape, i64, 0, classes)
        for fed in (index, index.to(i32)):
            case("one_hot", lambda _: F.one_hot(index, classes), index, fed=[fed], classes=classes)
    for bad in (-1, 5, 100):
        case("one_hot", lambda i: F.one_hot(i, 5), torch.tensor([0, bad]), classes=5)
    refused("one_hot", [real((3,))], classes=5)
    refused("one_hot", [whole((3,))], classes=-2)


FILLS = (unary, binary, selection, scalars, conversion, making)
