"""How cases of make_differential.py are made: inputs, and a record of PyTorch's results for them."""
import math

import torch

torch.manual_seed(11)
torch.set_num_threads(1)
torch.backends.mkldnn.set_flags(False)  # half convolutions that not every processor has
torch.set_default_dtype(torch.float64)

inf, nan = math.inf, math.nan
f64, f32, f16, bf16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
i64, i32, u8, b8 = torch.int64, torch.int32, torch.uint8, torch.bool
FLOATS, INTEGERS = (f64, f32, f16, bf16), (i64, i32, u8)
DIGITS = {f64: 12, f32: 8, f16: 5, bf16: 4}  # of results: more than the test's tolerances ask for
EDGES = [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0]
SHAPES = [(), (1,), (0,), (5,), (2, 3), (2, 0, 3), (3, 1, 2), (1, 2, 1, 2, 1), (1, 1, 2, 1, 1, 2, 1, 1)]
cases: list[dict] = []


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def numbers(t, exact=False):
    """Exact for inputs: the shortest text that reads back the same."""
    digits = DIGITS.get(t.dtype)

    def one(v):
        if isinstance(v, (bool, int)):
            return int(v)
        if not math.isfinite(v):
            return "nan" if v != v else "inf" if v > 0 else "-inf"
        if v == 0:
            return -0.0 if math.copysign(1, v) < 0 else 0
        v = v if exact else float(f"{v:.{digits}g}")
        return int(v) if v == int(v) and abs(v) < 2**53 else v
    return [one(v) for v in t.detach().to(f64 if t.is_floating_point() else t.dtype).reshape(-1).tolist()]


def described(t, exact=False):
    return {"shape": list(t.shape), "dtype": name_of(t.dtype), "values": numbers(t, exact)}


# --- Inputs. Multiples of 1/16 are exact in every floating dtype.

def real(shape, dtype=f64, low=-1.5, high=1.5):
    return (torch.round((torch.rand(shape) * (high - low) + low) * 16) / 16).to(dtype)


def whole(shape, dtype=i64, low=0, high=9):
    return torch.randint(low, high, shape).to(dtype)


def boolean(shape):
    return torch.rand(shape) < 0.5


def fixed(values, dtype=f64):
    return torch.tensor(values, dtype=f64).to(dtype)


def anything(shape, dtype):
    return boolean(shape) if dtype == b8 else real(shape, dtype) if dtype.is_floating_point else whole(shape, dtype)


# --- Recording

def refused(op, inputs=(), why="PyTorch refuses", **attributes):
    cases.append({"op": op, "attributes": attributes, "inputs": [described(t, True) for t in inputs], "refused": why})


def case(op, function, *inputs, derivatives=None, fed=None, constant=(), **attributes):
    """Calls function(*inputs) and records it with derivatives up to that order: by default the first, and in float64 the second.
    Where PyTorch refuses, so must ebb. `fed` are the inputs as ebb is given them, where PyTorch needs others; inputs in
    `constant` are not differentiated in."""
    wrt = [i for i, t in enumerate(inputs) if t.is_floating_point() and i not in constant]
    tensors = [t.clone().requires_grad_() if i in wrt else t for i, t in enumerate(inputs)]
    given = inputs if fed is None else fed
    try:
        outputs = function(*tensors)
    except (RuntimeError, IndexError, ValueError):
        return refused(op, given, **attributes)
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    record = {"op": op, "attributes": attributes, "inputs": [described(t, True) for t in given],
              "outputs": [described(t) for t in outputs]}
    cases.append(record)
    order = derivatives if derivatives is not None else 2 if any(t.dtype == f64 for t in inputs) else 1
    total = None
    for i, t in enumerate(outputs if order > 0 else []):
        if t.requires_grad and t.is_floating_point():
            weights = real(t.shape, t.dtype, -1.0, 1.0) + 1 / 32
            record["outputs"][i]["weights"] = numbers(weights, True)
            part = (t * weights).sum()
            total = part if total is None else total + part
    if total is None:
        return
    grads = torch.autograd.grad(total, [tensors[i] for i in wrt], allow_unused=True, create_graph=order > 1)
    zeros = [torch.zeros_like(tensors[i]) for i in wrt]
    record["grads"] = [None] * len(inputs)
    for i, g, zero in zip(wrt, grads, zeros):
        record["grads"][i] = numbers(zero if g is None else zero + g)
    if order < 2:
        return
    vectors = [real(z.shape, z.dtype, -1.0, 1.0) + 1 / 32 for z in zeros]
    product = sum((g * v).sum() for g, v in zip(grads, vectors) if g is not None)
    record["vectors"], record["second"] = [None] * len(inputs), [None] * len(inputs)
    second = [None] * len(wrt)
    if isinstance(product, torch.Tensor) and product.requires_grad:
        second = torch.autograd.grad(product, [tensors[i] for i in wrt], allow_unused=True)
    for i, v, g, zero in zip(wrt, vectors, second, zeros):
        record["vectors"][i] = numbers(v, True)
        record["second"][i] = numbers(zero if g is None else zero + g)
