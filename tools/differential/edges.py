"""NaN and infinities in functions that mix many elements. Other modules have them for functions of single elements and of rows.

These cases come last, so that new ones change no random number of the others."""
import itertools

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .recording import *

EPS = 1e-5
# Each in one element of otherwise finite inputs.
ONES = (nan, inf, -inf)


def with_one(shape, dtype, at, value):
    t = real(shape, dtype)
    t[at] = value
    return t


def attention():
    op, shape = "scaled_dot_product_attention", (1, 2, 4, 3)
    with sdpa_kernel(SDPBackend.MATH):
        for dtype, causal, value in itertools.product(FLOATS, (False, True), ONES):
            # With causal=True, ebb does not look at keys that are masked; PyTorch adds -inf to their products, which keeps NaN.
            for which in (0, 2) if causal else (0, 1, 2):
                inputs = [real(shape, dtype) for _ in range(3)]
                inputs[which] = with_one(shape, dtype, (0, 1, 2, 0), value)
                case(op, lambda *t: F.scaled_dot_product_attention(*t, is_causal=causal), *inputs, derivatives=1, causal=causal)


def losses():
    for dtype, reduction in itertools.product(FLOATS, ("mean", "sum", "none")):
        options = {"reduction": reduction, "ignore_index": -100}
        for smoothing, value in itertools.product((0.0, 0.1), ONES):
            fused = lambda h, w, t: F.cross_entropy(h @ w.t(), t, reduction=reduction, label_smoothing=smoothing)
            # Ignored rows have gradient 0 in ebb; in PyTorch a weight that is not finite makes it NaN.
            for h, w, targets in ((with_one((3, 4), dtype, (0, 1), value), real((5, 4), dtype), [1, 0, -100]),
                                  (real((3, 4), dtype), with_one((5, 4), dtype, (1, 2), value), [1, 0, 3])):
                case("linear_cross_entropy", fused, h, w, torch.tensor(targets), derivatives=1, label_smoothing=smoothing, **options)
        rows = fixed([[nan, -1.0, -2.0], [-1.0, inf, -2.0], [-inf, -1.0, -2.0], [-1.0, -inf, -2.0], [nan, nan, nan]], dtype)
        for targets in ([0, 1, 0, 1, -100], [1, 0, 1, 0, 2]):
            case("nll_loss", lambda x, t: F.nll_loss(x, t, reduction=reduction), rows, torch.tensor(targets), derivatives=1, **options)


def norms():
    def train(x, w, b, mean, variance):
        mean, variance = mean.clone(), variance.clone()
        return F.batch_norm(x, mean, variance, w, b, True, 0.25, EPS), mean, variance
    for dtype, value in itertools.product(FLOATS, ONES):
        kept = f64 if dtype == f64 else f32
        wide = lambda t: t.to(kept) if kept != dtype else t
        infer = lambda t, w, b, m, v: F.batch_norm(t, m, v, wide(w), wide(b), False, 0.1, EPS)
        shape, usual, shift = (3, 4, 2), real((4,), dtype), real((4,), dtype)
        mean, variance = real((4,), kept), real((4,), kept, 0.5)
        one, scale = with_one(shape, dtype, (1, 2, 0), value), with_one((4,), dtype, 1, value)
        for x, w in ((one, usual), (real(shape, dtype), scale)):
            case("batch_norm_inference", infer, x, w, shift, mean, variance, derivatives=1, constant=(3, 4), eps=EPS)
            # PyTorch computes x * scale + (shift - mean * scale), which is NaN where the scale is infinite; ebb subtracts first.
            if w is scale and value == value:
                continue
            case("group_norm", lambda t, *p: F.group_norm(t, 2, *p, EPS), x, w, shift, derivatives=1, groups=2, eps=EPS)
            case("batch_norm_training", lambda t, w, b, m, v: train(t, wide(w), wide(b), m, v), x, w, shift, mean, variance,
                 derivatives=1, constant=(3, 4), momentum=0.25, eps=EPS)
        odd = fixed([1.0, value, 0.0, 2.0], kept)
        case("batch_norm_inference", infer, real(shape, dtype), usual, shift, mean, odd, derivatives=1, constant=(3, 4), eps=EPS)
        if value != value:  # the gradient in the scale at an infinite mean depends on the order of its sum
            case("batch_norm_inference", infer, real(shape, dtype), usual, shift, odd, variance, derivatives=1, constant=(3, 4), eps=EPS)


def convolutions():
    for dtype, layout in itertools.product(FLOATS, ("channels_first", "channels_last")):
        laid = (lambda t: t.permute(0, 2, 3, 1).contiguous()) if layout == "channels_last" else (lambda t: t)
        back = (lambda t: t.permute(0, 3, 1, 2)) if layout == "channels_last" else (lambda t: t)
        for value, padding, groups in itertools.product(ONES, ([0, 0], [1, 1]), (1, 2)):
            x, w = (1, 2, 4, 4), (2, 2 // groups, 3, 3)
            inputs = [(with_one(x, dtype, (0, 1, 1, 2), value), real(w, dtype))]
            # Whether padding is multiplied, which gives NaN, depends on the kernel.
            if padding == [0, 0]:
                inputs.append((real(x, dtype), with_one(w, dtype, (1, 0, 0, 1), value)))
            for t, k in inputs:
                case("conv2d_laid_out", lambda t, k, b: laid(F.conv2d(back(t), k, b, 1, padding, 1, groups)), laid(t), k,
                     real((2,), dtype), derivatives=1, stride=[1, 1], padding=padding, dilation=[1, 1], groups=groups, layout=layout)


def scattered():
    index = torch.tensor([[0, 2, 2], [1, 1, 2]])
    for dtype, axis in itertools.product(FLOATS, (0, 1)):
        source = fixed([[nan, inf, -inf], [inf, inf, 1.0]], dtype)
        i, s = (index, source) if axis == 0 else (index.t().contiguous(), source.t().contiguous())
        for x in (real((3, 3), dtype), fixed([[nan, 1.0, inf], [-inf, inf, 0.0], [1.0, -inf, nan]], dtype)):
            case("scatter_add", lambda x, i, s: torch.scatter_add(x, axis, i, s), x, i, s, derivatives=1, axis=axis)


FILLS = (attention, losses, norms, convolutions, scattered)
