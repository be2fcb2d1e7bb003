"""Reductions and functions along axes."""
import itertools
import math

import torch
import torch.nn.functional as F

from .recording import *

NO_VALUE = "there is no value over no elements"


def dims(x, axes):
    """ebb's rule that no axes means all."""
    return tuple(axes) if axes else tuple(range(x.dim()))


REDUCTIONS = {
    "sum": lambda x, d, k: torch.sum(x, d, keepdim=k), "mean": lambda x, d, k: torch.mean(x, d, keepdim=k),
    "max": lambda x, d, k: torch.amax(x, d, keepdim=k), "min": lambda x, d, k: torch.amin(x, d, keepdim=k),
    "logsumexp": lambda x, d, k: torch.logsumexp(x, d, keepdim=k),
}
OVER = [((5,), []), ((5,), [0]), ((1,), [-1]), ((2, 3), [0]), ((2, 3), [-1]), ((2, 3), [0, 1]), ((3, 1, 2), [1]),
        ((3, 1, 2), [0, -1]), ((2, 0, 3), [0]), ((0, 3), [1]), ((1, 2, 1, 2, 1), [1, 3]),
        ((1, 1, 2, 1, 1, 2, 1, 1), [-1, 2, 5]), ((2, 2, 2, 2), [0, 2])]
BAD_AXES = [((2, 3), [0, -2]), ((2, 3), [1, 1]), ((2, 3), [2]), ((2, 3), [-3]), ((2, 2, 2), [0, 1, -3])]


def plain():
    for op, function in REDUCTIONS.items():
        for (shape, axes), dtype in itertools.product(OVER, FLOATS):
            for keep in (False, True) if dtype in (f64, bf16) else (False,):
                case(op, lambda x: function(x, dims(x, axes), keep), real(shape, dtype), axes=axes, keep=keep)
        case(op, lambda x: function(x, (), False) if op not in ("logsumexp",) else x.clone(), real(()), axes=[], keep=False) \
            if op != "logsumexp" else None
        for dtype in FLOATS:
            edges = fixed([[1.0, nan, 2.0], [inf, 1.0, inf], [-inf, 1.0, 3.0], [inf, -inf, 0.0], [-inf, -inf, -inf],
                           [2.0, 2.0, 1.0], [-0.0, 0.0, -0.0]], dtype)
            case(op, lambda x: function(x, (1,), False), edges, derivatives=1, axes=[1], keep=False)
        for shape, axes in BAD_AXES:
            case(op, lambda x: function(x, dims(x, axes), False), real(shape), axes=axes, keep=False)
        for dtype in INTEGERS:
            if op == "logsumexp":
                refused(op, [whole((3,), dtype)], "dtypes are not promoted; cast() says what is meant", axes=[], keep=False)
                continue
            for shape, axes in OVER[:8] + [((300,), [])]:
                values = whole(shape, dtype, 200, 256)
                case(op, lambda x: function(x, dims(x, axes), False), values, axes=axes, keep=False)
        refused(op, [boolean((3,))], "booleans are cast() first", axes=[], keep=False)
    case("sum", torch.sum, torch.full((300,), 2**30, dtype=i32), axes=[], keep=False)
    for op in ("sum", "mean"):
        for dtype in FLOATS:
            case(op, lambda x: REDUCTIONS[op](x, (0,), False), real((0, 3), dtype), axes=[0], keep=False)
    for dtype in FLOATS:
        case("logsumexp", lambda x: torch.logsumexp(x, (0,)), real((0, 3), dtype), axes=[0], keep=False)
        # A sum that the dtype cannot hold may have a mean that it can.
        case("mean", lambda x: torch.mean(x, (0,)), torch.full((300,), 1000.0, dtype=dtype), derivatives=1, axes=[0], keep=False)
    for op in ("max", "min"):
        case(op, lambda x: REDUCTIONS[op](x, (0,), False), real((0, 3)), axes=[0], keep=False)
    for (shape, axes), dtype in itertools.product(OVER, (f64, f32)):
        case("sum_squares", lambda x: torch.sum(x * x, dims(x, axes)), real(shape, dtype), axes=axes, keep=False)
    for shape, axes in OVER:
        x = whole(shape, u8, 200, 256)
        case("sum_squares", lambda _: torch.sum(x.to(i64) ** 2, dims(x, axes)), x, axes=axes, keep=False)


def statistics():
    for (shape, axes), dtype, correction in itertools.product(OVER, FLOATS, (0, 1)):
        x = real(shape, dtype)
        count = math.prod(shape[a] for a in dims(x, axes))
        if count <= correction:
            refused("var", [x], "a variance needs more elements than its correction", axes=axes, correction=correction, keep=False)
        else:
            case("var", lambda t: torch.var(t, dims(t, axes), correction=correction), x, axes=axes, correction=correction,
                 keep=False)
    for dtype in FLOATS:
        case("var", lambda t: torch.var(t, (1,)), fixed([[1.0, nan], [inf, 1.0], [2.0, 2.0]], dtype), derivatives=1, axes=[1],
             correction=1, keep=False)
    for shape, axes in BAD_AXES:
        case("var", lambda t: torch.var(t, tuple(axes)), real(shape), axes=axes, correction=1, keep=False)
    for shape, dtype in itertools.product([(5,), (2, 3), (3, 1, 2), (1, 1, 2, 1, 1, 2, 1, 1), (0, 3)], (*FLOATS, *INTEGERS)):
        axes = range(-1, len(shape)) if len(shape) < 4 else (2, 5)
        for axis in axes:
            if shape[axis] == 0:
                refused("argmax", [anything(shape, dtype)], NO_VALUE, axis=axis, keep=False)
            else:
                case("argmax", lambda t: torch.argmax(t, axis, keepdim=axis == 0), anything(shape, dtype), axis=axis,
                     keep=axis == 0)
    for dtype in FLOATS:
        case("argmax", lambda t: torch.argmax(t, 1), fixed([[1.0, nan, 3.0], [inf, 2.0, inf], [-inf, -inf, -inf], [0.0, -0.0, 0.0]],
                                                           dtype), axis=1, keep=False)
    case("argmax", lambda t: torch.argmax(t, 2), real((2, 3)), axis=2, keep=False)


def norms():
    orders = (0.0, 1.0, 2.0, 3.0, 0.5, 1.5, -1.0, -2.0, inf, -inf)
    for p, dtype in itertools.product(orders, FLOATS):
        text = p if math.isfinite(p) else str(p)
        vector_norm = lambda x, d: torch.linalg.vector_norm(x, p, dim=d)
        for shape, axes in [((5,), [0]), ((2, 3), [1]), ((2, 3), [0, 1]), ((3, 1, 2), [0, 2]), ((0, 3), [1])]:
            case("norm", lambda x: vector_norm(x, tuple(axes)), real(shape, dtype) + 1 / 32, p=text, axes=axes,
                 keep=False)
        # Zeros, alone and among others, are where a norm has no derivative; PyTorch gives 0.
        case("norm", lambda x: vector_norm(x, (1,)), fixed([[0.0, 0.0], [0.0, 2.0], [-0.0, -2.0], [1.0, -1.0]], dtype), derivatives=1,
             p=text, axes=[1], keep=False)
        # With NaN, PyTorch gives the norms of order inf and -inf gradient 0, and amax and amin NaN; ebb has one gradient for both.
        order = 0 if math.isinf(p) else 1
        case("norm", lambda x: vector_norm(x, (1,)), fixed([[nan, 2.0], [1.0, nan]], dtype), derivatives=order, p=text, axes=[1],
             keep=False)
        case("norm", lambda x: vector_norm(x, (1,)), fixed([[inf, 2.0], [-inf, 0.5]], dtype), derivatives=1, p=text, axes=[1], keep=False)
        case("norm", lambda x: vector_norm(x, (1,)), real((3, 0), dtype), p=text, axes=[1], keep=False)
    case("norm", lambda x: torch.linalg.vector_norm(x, 2.0, dim=(0, -2)), real((2, 3)), p=2.0, axes=[0, -2], keep=False)
    case("norm", lambda x: torch.linalg.vector_norm(x, 2.0), whole((3,)), p=2.0, axes=[], keep=False)
    refused("norm", [real((3,))], "the order is a number", p="nan", axes=[], keep=False)
    for (shape, target), dtype in itertools.product(
            [((2, 3, 4), [4]), ((2, 3, 4), [3, 1]), ((2, 3, 4), [2, 1, 4]), ((2, 3, 4), []), ((2, 3, 4), [1, 1]), ((5,), [1]),
             ((2, 0), [1, 0]), ((2, 0), [2, 1]), ((), [])], FLOATS):
        case("sum_to", lambda x: x.sum_to_size(target), real(shape, dtype), shape=target)


def along():
    for op, function in {"softmax": torch.softmax, "log_softmax": torch.log_softmax}.items():
        for shape, dtype in itertools.product([(5,), (1,), (2, 3), (3, 1, 2), (2, 0, 3), (0,), (1, 1, 2, 1, 1, 2, 1, 1)], FLOATS):
            for axis in {-1, 0, len(shape) // 2}:
                case(op, lambda x: function(x, axis), real(shape, dtype), axis=axis)
        for dtype in FLOATS:
            case(op, lambda x: function(x, 1), fixed([[1.0, nan, 2.0], [inf, 1.0, 0.0], [-inf, 1.0, 0.0], [-inf, -inf, -inf]], dtype),
                 derivatives=1, axis=1)
            case(op, lambda x: function(x, 1), fixed([[1000.0, 999.0, -1000.0]], dtype), axis=1)
        case(op, lambda x: function(x, 2), real((2, 3)), axis=2)
        case(op, lambda x: function(x, -3), real((2, 3)), axis=-3)
        refused(op, [whole((3,))], axis=0)


FILLS = (plain, statistics, norms, along)
