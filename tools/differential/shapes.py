"""Functions that move elements, and products."""
import itertools

import torch
import torch.nn.functional as F

from .recording import *

EVERY = (*FLOATS, *INTEGERS, b8)


def views():
    for dtype in EVERY:
        for shape, to in [((2, 6), [3, -1]), ((), [1, 1]), ((1,), []), ((0, 3), [3, 0]), ((2, 3), [6]), ((2, 1, 3), [1, 6, 1]),
                          ((4, 3), [2, 2, 3])]:
            case("reshape", lambda x: x.reshape(to), anything(shape, dtype), shape=to)
        for shape, to in [((4, 6), [3, 8]), ((2, 1), [-1]), ((2, 3, 4), [2, 2, 6]), ((0, 2), [0]), ((6, 4), [2, 2, 6])]:
            case("reshape_transposed", lambda x: x.transpose(-2, -1).reshape(to), anything(shape, dtype), shape=to)
        for shape, first in [((2, 3, 2), 1), ((2, 3, 2), 0), ((2, 0, 2), -2), ((5,), 0), ((2, 3), -1)]:
            case("flatten", lambda x: x.flatten(first), anything(shape, dtype), first_axis=first)
        for shape, order in [((2, 3, 2), [2, 0, 1]), ((2, 3, 2), [-1, 0, -2]), ((), []), ((0, 3), [1, 0]),
                             ((1, 1, 2, 1, 1, 2, 1, 1), [7, 5, 2, 0, 1, 3, 4, 6])]:
            case("permute", lambda x: x.permute(order), anything(shape, dtype), order=order)
        for shape, a, b in [((2, 3), -2, -1), ((2, 3, 4), 0, 2), ((2, 0, 3), 1, 1), ((1, 3), 0, -1)]:
            case("transpose", lambda x: x.transpose(a, b), anything(shape, dtype), a=a, b=b)
        for shape, to in [((3, 1), [2, 3, 4]), ((), [2]), ((1,), [0]), ((1, 3), [1, 3]), ((2, 1), [2, 0])]:
            case("expand", lambda x: x.expand(to), anything(shape, dtype), shape=to)
        for shape, axis in [((3, 1, 2), 1), ((1,), 0), ((1, 0), 0), ((2, 1), -1)]:
            case("squeeze", lambda x: x.squeeze(axis), anything(shape, dtype), axis=axis)
        for shape, axis in [((3, 2), -1), ((), 0), ((3, 2), 1), ((0,), 0)]:
            case("unsqueeze", lambda x: x.unsqueeze(axis), anything(shape, dtype), axis=axis)
        for shape in [(2, 3), (1, 1), (0, 2), (2, 1, 3)]:
            case("contiguous", lambda x: x.transpose(-2, -1).contiguous(), anything(shape, dtype))
    for shape, to in [((2, 3), [4]), ((2, 3), [-1, -1]), ((2, 3), [4, -1]), ((0,), [-1, 0])]:
        case("reshape", lambda x: x.reshape(to), real(shape), shape=to)
    for order in ([0, 0], [0, -2], [0], [0, 2], [0, 1, 2]):
        case("permute", lambda x: x.permute(order), real((2, 3)), order=order)
    case("transpose", lambda x: x.transpose(0, 2), real((2, 3)), a=0, b=2)
    for to in ([3], [4, 3], [2]):
        case("expand", lambda x: x.expand(to), real((2, 3)), shape=to)
    refused("squeeze", [real((2, 3))], "PyTorch leaves an axis that is not 1 alone; here it must be 1", axis=0)
    case("unsqueeze", lambda x: x.unsqueeze(4), real((2, 3)), axis=4)
    case("flatten", lambda x: x.flatten(2), real((2, 3)), first_axis=2)


def parts():
    for dtype in EVERY:
        for shape, axis, begin, end, step in [((4, 7), 1, 1, 6, 2), ((4, 7), 0, 0, 3, 1), ((4, 7), -1, 2, 7, 3), ((4, 7), 1, 4, 4, 1),
                                              ((5,), 0, 0, 5, 9), ((0, 2), 0, 0, 0, 1), ((2, 1, 3), 1, 0, 1, 1)]:
            place = [slice(None)] * len(shape)
            place[axis] = slice(begin, end, step)
            case("slice", lambda x: x[tuple(place)], anything(shape, dtype), axis=axis, begin=begin, end=end, step=step)
        for shape, axis, sizes in [((3, 6), 1, [1, 2, 3]), ((6,), 0, [6]), ((3, 2), -2, [0, 3]), ((0, 2), 0, [0, 0])]:
            case("split", lambda x: x.split(sizes, axis), anything(shape, dtype), axis=axis, sizes=sizes)
        for shape, axis, count in [((2, 6), 1, 3), ((4,), 0, 1), ((2, 4, 1), -2, 2)]:
            case("chunk", lambda x: x.chunk(count, axis), anything(shape, dtype), axis=axis, parts=count)
        for shapes, axis in [([(2, 3), (2, 1), (2, 2)], 1), ([(1, 3), (2, 3)], -2), ([(2,), (0,), (1,)], 0), ([(3, 1)], 0)]:
            case("concat", lambda *x: torch.cat(x, axis), *(anything(s, dtype) for s in shapes), axis=axis)
        for shape, count, axis in [((2, 3), 2, -1), ((2,), 3, 0), ((), 2, 0), ((0, 2), 2, 1), ((3, 1), 1, 1)]:
            case("stack", lambda *x: torch.stack(x, axis), *(anything(shape, dtype) for _ in range(count)), axis=axis)
        for shape, before, after in [((2, 3), [1, 0], [0, 2]), ((3,), [0], [0]), ((0, 2), [1, 0], [0, 1]), ((2, 1, 2), [1, 1, 1], [1, 0, 2])]:
            flat = [n for pair in reversed(list(zip(before, after))) for n in pair]
            value = 0 if dtype == b8 else 3 if not dtype.is_floating_point else -1.5
            case("pad", lambda x: F.pad(x, flat, value=value), anything(shape, dtype), before=before, after=after, value=value)
    for value in (0.5, "nan", 300):
        refused("pad", [whole((3,), u8)], "the dtype cannot hold the number", before=[1], after=[1], value=value)
    for value in (inf, nan):
        case("pad", lambda x: F.pad(x, (1, 1), value=value), real((3,)), before=[1], after=[1], value=str(value))
    refused("pad", [real((3,))], "padding is not negative", before=[-1], after=[0], value=0)
    refused("slice", [real((3,))], "a range lies within its axis", axis=0, begin=1, end=5, step=1)
    refused("slice", [real((3,))], axis=0, begin=0, end=3, step=0)
    case("split", lambda x: x.split([1, 1], 0), real((3,)), axis=0, sizes=[1, 1])
    refused("chunk", [real((5,))], "parts are equal", axis=0, parts=2)
    case("concat", lambda *x: torch.cat(x, 0), real((2, 3)), real((2, 2)), axis=0)
    refused("concat", [real((2,)), real((2,), f32)], "dtypes are not promoted; cast() says what is meant", axis=0)
    case("stack", lambda *x: torch.stack(x, 0), real((2, 3)), real((2, 2)), axis=0)


def picked():
    for dtype, axis in itertools.product(EVERY, (0, 1, -1)):
        for extent in (5, 1, 0):
            shape = [3, 4, 2]
            limit = shape[axis]
            shape[axis] = extent
            index = whole(shape, i64, 0, limit)
            for fed in (index, index.to(i32)) if dtype == f64 else (index,):
                x = anything((3, 4, 2), dtype)
                case("gather", lambda t, _: torch.gather(t, axis, index), x, index, fed=[x, fed], axis=axis)
            if dtype != b8:
                case("scatter_add", lambda x, i, s: torch.scatter_add(x, axis, i, s), anything((3, 4, 2), dtype), index,
                     anything(shape, dtype), axis=axis)
    for bad in (-1, 3, 1000):
        index = torch.tensor([[0, bad]])
        case("gather", lambda x, i: torch.gather(x, 0, i), real((3, 2)), index, axis=0)
        case("scatter_add", lambda x, i, s: torch.scatter_add(x, 0, i, s), real((3, 2)), index, real((1, 2)), axis=0)
        case("embedding", lambda w, i: F.embedding(i, w), real((3, 2)), index)
    case("gather", lambda x, i: torch.gather(x, 0, i), real((3, 2)), real((1, 2)), axis=0)
    for dtype, shape in itertools.product(FLOATS, [(7,), (2, 3), (), (0,), (1, 2, 1), (2, 0)]):
        for kind in (i64, i32):
            case("embedding", lambda w, i: F.embedding(i, w), real((5, 3), dtype), whole(shape, kind, 0, 5))
    case("embedding", lambda w, i: F.embedding(i, w), fixed([[nan, 1.0], [inf, 2.0]]), torch.tensor([0, 1, 1]))


def products():
    def product(a, b, ta, tb):
        return torch.matmul(a.transpose(-1, -2) if ta else a, b.transpose(-1, -2) if tb else b)
    operands = [((3, 4), (4, 5), False, False), ((4, 3), (4, 5), True, False), ((3, 4), (5, 4), False, True),
                ((4, 3), (5, 4), True, True), ((2, 3, 4), (2, 4, 2), False, False), ((1, 3, 4), (2, 4, 2), False, False),
                ((2, 3, 4), (4, 2), False, False), ((3, 4), (2, 4, 2), False, False), ((2, 1, 3, 4), (3, 2, 4), False, True),
                ((1, 1), (1, 1), False, False), ((0, 4), (4, 2), False, False), ((2, 0), (0, 3), False, False),
                ((2, 3, 4), (2, 4, 0), False, False), ((0, 2, 3), (3, 2), False, False)]
    for dtype, (a, b, ta, tb) in itertools.product(FLOATS, operands):
        case("matmul", lambda x, y: product(x, y, ta, tb), real(a, dtype), real(b, dtype), transpose_a=ta, transpose_b=tb)
    for dtype in FLOATS:
        case("matmul", torch.matmul, fixed([[nan, 1.0], [1.0, 2.0]], dtype), fixed([[1.0, 2.0], [inf, 0.0]], dtype), derivatives=1,
             transpose_a=False, transpose_b=False)
        for x, with_bias in itertools.product([(3, 4), (2, 3, 4), (0, 4), (1, 1, 4), (4,)], (True, False)):
            bias = [real((5,), dtype)] if with_bias else []
            if x == (4,):
                refused("linear", [real(x, dtype), real((5, 4), dtype), *bias], "operands have at least two axes")
            else:
                case("linear", F.linear, real(x, dtype), real((5, 4), dtype), *bias)
        for x in [(3, 4), (2, 3, 4), (0, 4), (1, 1, 4), (2, 1, 2, 4)]:
            case("linear_in_out", lambda x, w, b: x @ w + b, real(x, dtype), real((4, 5), dtype), real((5,), dtype))
            case("linear_in_out", lambda x, w: x @ w, real(x, dtype), real((4, 5), dtype))
    case("matmul", torch.matmul, real((2, 3)), real((2, 3)), transpose_a=False, transpose_b=False)
    case("matmul", torch.matmul, real((2, 2, 3)), real((3, 3, 2)), transpose_a=False, transpose_b=False)
    refused("matmul", [whole((2, 2)), whole((2, 2))], "products are of floating point", transpose_a=False, transpose_b=False)
    refused("matmul", [real((2, 2)), real((2, 2), f32)], transpose_a=False, transpose_b=False)
    case("linear", F.linear, real((2, 3)), real((5, 4)))


FILLS = (views, parts, picked, products)
