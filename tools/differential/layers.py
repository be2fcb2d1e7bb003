"""Normalisation, losses, attention and images."""
import itertools

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .recording import *

EPS = 1e-5


def normalisation():
    for dtype in FLOATS:
        # Over one or two elements, what is normalised is a difference of nearly nothing: its digits are noise but in float64.
        for shape in [(4, 6), (2, 3, 6), (6,), (0, 6), (2, 1, 1, 6)] + [(3, 1), (3, 2)] * (dtype == f64):
            size = shape[-1:]
            w, b = real(size, dtype), real(size, dtype)
            case("layer_norm", lambda x, w, b: F.layer_norm(x, size, w, b, EPS), real(shape, dtype), w, b, eps=EPS)
            case("layer_norm", lambda x, w: F.layer_norm(x, size, w, None, EPS), real(shape, dtype), w, eps=EPS)
            case("layer_norm", lambda x: F.layer_norm(x, size, None, None, EPS), real(shape, dtype), eps=EPS)
            case("rms_norm", lambda x, w: F.rms_norm(x, size, w, EPS), real(shape, dtype), w, eps=EPS)
            case("rms_norm", lambda x: F.rms_norm(x, size, None, EPS), real(shape, dtype), eps=EPS)
        edges = fixed([[nan, 1.0, 2.0], [inf, 1.0, 0.0], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0]], dtype)
        case("layer_norm", lambda x: F.layer_norm(x, (3,), None, None, EPS), edges, derivatives=1, eps=EPS)
        case("rms_norm", lambda x: F.rms_norm(x, (3,), None, EPS), edges, derivatives=1, eps=EPS)
        for (shape, groups), affine in itertools.product([((2, 4, 3, 2), 1), ((2, 4, 3, 2), 4), ((3, 8), 2), ((1, 6, 2), 3),
                                                          ((2, 6, 1, 1), 2), ((0, 4, 2), 2)], (True, False)):
            extra = [real(shape[1:2], dtype), real(shape[1:2], dtype)] if affine else []
            case("group_norm", lambda x, *p: F.group_norm(x, groups, *(p or (None, None)), EPS), real(shape, dtype), *extra,
                 groups=groups, eps=EPS)
    case("group_norm", lambda x: F.group_norm(x, 3, None, None, EPS), real((2, 4)), groups=3, eps=EPS)
    case("layer_norm", lambda x, w: F.layer_norm(x, (6,), w, None, EPS), real((2, 6)), real((5,)), eps=EPS)
    for op in ("layer_norm", "rms_norm"):
        refused(op, [whole((2, 3))], eps=EPS)


def batch_norm():
    # Running statistics are kept in float32 beside halves.
    def train(x, w, b, mean, variance, momentum):
        mean, variance = mean.clone(), variance.clone()
        return F.batch_norm(x, mean, variance, w, b, True, momentum, EPS), mean, variance
    for dtype, shape in itertools.product(FLOATS, [(3, 4, 2, 2), (5, 4), (2, 4, 3), (1, 4, 3, 1), (2, 1, 1, 3), (1, 4), (2, 4, 1, 2, 1)]):
        c, kept = shape[1], f64 if dtype == f64 else f32
        parameters = [real((c,), dtype), real((c,), dtype), real((c,), kept), real((c,), kept, 0.5)]
        for momentum in (0.1, 1.0, 0.0) if dtype == f64 else (0.25,):
            case("batch_norm_training", lambda x, w, b, m, v: train(x, w.to(kept) if kept != dtype else w,
                                                                   b.to(kept) if kept != dtype else b, m, v, momentum),
                 real(shape, dtype), *parameters, constant=(3, 4), momentum=momentum, eps=EPS)
        case("batch_norm_inference",
             lambda x, w, b, m, v: F.batch_norm(x, m, v, w.to(kept) if kept != dtype else w, b.to(kept) if kept != dtype else b,
                                                False, 0.1, EPS),
             real(shape, dtype), *parameters, constant=(3, 4), eps=EPS)


def losses():
    for dtype, reduction, smoothing in itertools.product(FLOATS, ("mean", "sum", "none"), (0.0, 0.1)):
        options = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": -100}
        # Half losses are float32 in ebb, since their digits are the loss's alone.
        cross = lambda x, t: F.cross_entropy(x.reshape(-1, x.shape[-1]), t.reshape(-1), reduction=reduction,
                                             label_smoothing=smoothing).reshape(t.shape if reduction == "none" else ())
        for shape, targets in [((5, 5), torch.tensor([2, 0, -100, 4, 1])), ((2, 3, 4), whole((2, 3), i64, 0, 4)),
                               ((1, 1), torch.tensor([0])), ((2, 3), torch.tensor([-100, -100])), ((3,), torch.tensor(1))]:
            x = real(shape, dtype)
            case("cross_entropy", cross, x, targets, **options)
            fused = lambda h, w, t: F.cross_entropy((h @ w.t()).reshape(-1, w.shape[0]), t.reshape(-1), reduction=reduction,
                                                    label_smoothing=smoothing).reshape(t.shape if reduction == "none" else ())
            if len(shape) > 1:
                case("linear_cross_entropy", fused, real((*shape[:-1], 4), dtype), real((shape[-1], 4), dtype), targets, **options)
    for dtype, reduction in itertools.product(FLOATS, ("mean", "sum", "none")):
        for ignored in (-100, 3, 0):
            case("nll_loss", lambda x, t: F.nll_loss(x, t, reduction=reduction, ignore_index=ignored), real((4, 5), dtype),
                 torch.tensor([1, 3, 0, 2]), reduction=reduction, ignore_index=ignored)
        for shape in [(3, 4), (), (1,), (2, 1, 3), (0,)]:
            case("mse_loss", lambda x, y: F.mse_loss(x, y, reduction=reduction), real(shape, dtype), real(shape, dtype),
                 reduction=reduction)
            case("bce_with_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction=reduction), real(shape, dtype),
                 real(shape, dtype, 0.0, 1.0), reduction=reduction)
        case("bce_with_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction=reduction),
             fixed([-200.0, -30.0, 0.0, 30.0, 200.0, 100.0], dtype), fixed([0.0, 1.0, 0.5, 0.0, 1.0, 1.0], dtype), reduction=reduction)
    for dtype in FLOATS:
        for target in (0.0, 0.5, 1.0):
            case("bce_with_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"), fixed(EDGES, dtype),
                 torch.full((len(EDGES),), target, dtype=dtype), derivatives=1, constant=(1,), reduction="none")
        edges = fixed([[nan, 1.0, 2.0], [inf, 1.0, 0.0], [-inf, 1.0, 0.0], [1.0, -inf, 0.0], [-inf, -inf, -inf]], dtype)
        case("cross_entropy", lambda x, t: F.cross_entropy(x, t, reduction="none"), edges, torch.tensor([1, 1, 1, 1, 1]), derivatives=1,
             reduction="none", label_smoothing=0.0, ignore_index=-100)
        case("mse_loss", lambda x, y: F.mse_loss(x, y, reduction="none"), fixed(EDGES, dtype), fixed(EDGES[::-1], dtype), derivatives=1,
             reduction="none")
    for bad in (-1, 5):
        targets = torch.tensor([0, bad])
        options = {"reduction": "mean", "ignore_index": -100}
        case("cross_entropy", F.cross_entropy, real((2, 5)), targets, label_smoothing=0.0, **options)
        case("nll_loss", F.nll_loss, real((2, 5)), targets, **options)
        case("linear_cross_entropy", lambda h, w, t: F.cross_entropy(h @ w.t(), t), real((2, 3)), real((5, 3)), targets,
             label_smoothing=0.0, **options)
    case("cross_entropy", F.cross_entropy, real((2, 5)), torch.tensor([0, 1, 2]), reduction="mean", label_smoothing=0.0,
         ignore_index=-100)
    refused("mse_loss", [real((2, 3)), whole((2, 3))], "dtypes are not promoted; cast() says what is meant", reduction="mean")


def attention():
    with sdpa_kernel(SDPBackend.MATH):  # the only one that can be differentiated twice
        attention_cases()


def attention_cases():
    op = "scaled_dot_product_attention"
    for dtype, causal in itertools.product(FLOATS, (False, True)):
        attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
        for q, k in [((1, 2, 4, 3), (1, 2, 4, 3)), ((2, 4, 3, 2), (2, 2, 3, 2)), ((1, 1, 1, 1), (1, 1, 1, 1)),
                     ((1, 2, 3, 2), (1, 2, 5, 2)), ((1, 4, 2, 2), (1, 1, 2, 2))]:
            case(op, attend, real(q, dtype), real(k, dtype), real(k, dtype), causal=causal)
        case(op, lambda *t: F.scaled_dot_product_attention(*t, is_causal=causal, scale=0.25), real((1, 2, 4, 3), dtype),
             real((1, 2, 4, 3), dtype), real((1, 2, 4, 5), dtype), causal=causal, scale=0.25)
    for dtype in FLOATS:
        inputs = [real((1, 2, 4, 3), dtype) for _ in range(3)]
        masked = lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m)
        for shape in [(1, 1, 4, 4), (1, 2, 4, 4), (4, 4)]:
            case(op + "_masked", masked, *inputs, boolean(shape) | torch.eye(4, dtype=b8))
        for shape in [(4, 4), (1, 2, 4, 4), (1, 1, 1, 4), (4, 1), (1,)]:
            case(op + "_masked", masked, *inputs, real(shape, dtype), constant=(3,))
    case(op, lambda *t: F.scaled_dot_product_attention(*t), real((1, 2, 4, 3)), real((1, 2, 4, 2)), real((1, 2, 4, 3)), causal=False)

    def rotary(x, base, first):
        half = x.shape[-1] // 2
        angles = torch.outer(torch.arange(first, first + x.shape[-2], dtype=f64), base ** (-torch.arange(half, dtype=f64) / half))
        cos, sin = torch.cos(angles), torch.sin(angles)
        a, b = x[..., :half].to(f64), x[..., half:].to(f64)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
    for dtype, first, base, shape in itertools.product(FLOATS, (0, 3), (10000.0, 10.0), [(1, 2, 3, 6), (2, 2), (0, 3, 4), (1, 1, 1, 2)]):
        case("rotary", lambda x: rotary(x, base, first), real(shape, dtype), base=base, first_position=first)
    refused("rotary", [real((2, 3))], "elements are turned in pairs", base=10.0, first_position=0)


def images():
    for dtype, layout in itertools.product(FLOATS, ("channels_first", "channels_last")):
        def laid(x):
            return x.permute(0, 2, 3, 1).contiguous() if layout == "channels_last" else x

        def image_case(op, function, x, *others, **attributes):
            """`function` takes (N, C, H, W); ebb is given, and gives, the layout's order."""
            back = (lambda t: t.permute(0, 3, 1, 2)) if layout == "channels_last" else (lambda t: t)
            case(op, lambda t, *o: laid(function(back(t), *o)), laid(x), *others, layout=layout, **attributes)
        for x, w, bias, stride, padding, dilation, groups in [
                ((2, 2, 5, 4), (2, 2, 3, 3), True, [1, 1], [0, 0], [1, 1], 1),
                ((1, 2, 5, 5), (4, 2, 3, 3), True, [2, 2], [1, 1], [1, 1], 1),
                ((1, 2, 6, 5), (2, 2, 2, 3), False, [1, 2], [0, 1], [2, 1], 1),
                ((1, 4, 4, 4), (4, 2, 3, 3), True, [1, 1], [1, 1], [1, 1], 2),
                ((1, 3, 1, 1), (2, 3, 1, 1), True, [1, 1], [0, 0], [1, 1], 1),
                ((1, 3, 4, 5), (3, 1, 3, 3), False, [1, 1], [1, 1], [1, 1], 3)]:
            tensors = [real(w, dtype)] + ([real(w[:1], dtype)] if bias else [])
            image_case("conv2d_laid_out", lambda t, k, *b: F.conv2d(t, k, b[0] if b else None, stride, padding, dilation, groups),
                       real(x, dtype), *tensors, stride=stride, padding=padding, dilation=dilation, groups=groups)
        pool = [([2, 2], [2, 2], [0, 0]), ([3, 2], [1, 2], [1, 0]), ([3, 3], [2, 2], [1, 1]), ([1, 1], [1, 1], [0, 0])]
        for (size, stride, padding), x in itertools.product(pool, [(1, 2, 5, 4), (2, 1, 3, 3)]):
            options = {"size": size, "stride": stride, "padding": padding}
            image_case("max_pool2d_laid_out", lambda t: F.max_pool2d(t, size, stride, padding), real(x, dtype), **options)
            for counted in (True, False):
                image_case("avg_pool2d_laid_out", lambda t: F.avg_pool2d(t, size, stride, padding, count_include_pad=counted),
                           real(x, dtype), counted=counted, **options)
        edges = fixed([[nan, 1.0, 2.0, 3.0], [1.0, inf, -inf, 0.0], [-inf, -inf, 5.0, 5.0], [-inf, -inf, 5.0, 5.0]], dtype)
        image_case("max_pool2d_laid_out", lambda t: F.max_pool2d(t, [2, 2], [2, 2], [0, 0]), edges.reshape(1, 1, 4, 4), derivatives=1,
                   size=[2, 2], stride=[2, 2], padding=[0, 0])
        for x in [(2, 3, 4, 2), (1, 1, 1, 1), (0, 2, 2, 2), (3, 2, 1, 5)]:
            back = (lambda t: t.permute(0, 3, 1, 2)) if layout == "channels_last" else (lambda t: t)
            case("global_avg_pool2d", lambda t: back(t).mean((2, 3)), laid(real(x, dtype)), layout=layout)
    options = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "layout": "channels_first"}
    case("conv2d_laid_out", lambda x, w: F.conv2d(x, w), real((1, 3, 4, 4)), real((2, 2, 3, 3)), **options)
    case("conv2d_laid_out", lambda x, w: F.conv2d(x, w), real((1, 2, 2, 2)), real((2, 2, 3, 3)), **options)
    case("max_pool2d_laid_out", lambda x: F.max_pool2d(x, [2, 2], [1, 1], [2, 2]), real((1, 1, 4, 4)), size=[2, 2], stride=[1, 1],
         padding=[2, 2], layout="channels_first")


FILLS = (normalisation, batch_norm, losses, attention, images)
