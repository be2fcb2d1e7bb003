#!/usr/bin/env python3
"""The cases of ebb_bench in PyTorch, on the CPU, as a user would call them (eager mode).

Prints one JSON object per case. Gradients that PyTorch has a function of its own for are called
directly, without autograd's overhead. Chains of elementwise functions are also run through
torch.compile unless --no-compile is given; a chain that cannot be compiled has no such figure.
"""
import argparse
import json
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("torch_ops.py: PyTorch is not installed for this Python; ebb_bench runs without it")

VOCABULARY = 50257
WIDE = (2048, 2048)
HIDDEN = (8192, 768)
SCORES = (4096, 1024)
aten = torch.ops.aten


def normal(*shape, deviation=1.0):
    return torch.randn(shape) * deviation


def ids(*shape):
    return torch.randint(VOCABULARY, shape)


def product(a, b):
    return lambda: torch.matmul(a, b)


def convolution(batch, channels, size, out, kernel, which):
    x = normal(batch, channels, size, size)
    w = normal(out, channels, kernel, kernel, deviation=0.05)
    pad = kernel // 2
    if which == "forward":
        return lambda: F.conv2d(x, w, padding=pad)
    up = normal(batch, out, size, size)
    mask = [which == "input_grad", which == "weight_grad", False]
    return lambda: aten.convolution_backward(
        up, x, w, None, [1, 1], [pad, pad], [1, 1], False, [0, 0], 1, mask)


def attention(shape, causal, with_backward):
    q, k, v = (normal(*shape).requires_grad_(with_backward) for _ in range(3))
    if not with_backward:
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    up = normal(*shape)

    def run():
        with torch.enable_grad():
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return y, torch.autograd.grad(y, (q, k, v), up)

    return run


# Functions that torch.compile is tried on; kept here so that it compiles each once.
def gelu_tanh(x):
    return F.gelu(x, approximate="tanh")


def gelu_tanh_grad(up, x):
    return aten.gelu_backward(up, x, approximate="tanh")


def chain_4(a, b, c):
    return (a * b + c) * b + c


def chain_12(a, b, c):
    y = a
    for _ in range(6):
        y = y * b + c
    return y


def bias_gelu_dropout(x, bias):
    return F.dropout(F.gelu(x + bias, approximate="tanh"), 0.1, training=True)


class Pointwise:
    """A chain of elementwise functions and what it is called with."""

    compiled = {}

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __call__(self):
        return self.function(*self.arguments)

    def compile(self):
        """The compiled chain, or None if that fails (for example without a C++ compiler)."""
        if self.function not in self.compiled:
            try:
                made = torch.compile(self.function)
                made(*self.arguments)
            except Exception as error:  # torch raises many kinds here
                print(f"torch_ops.py: cannot compile {self.function.__name__}: "
                      f"{str(error).splitlines()[0]}", file=sys.stderr)
                made = None
            self.compiled[self.function] = made
        made = self.compiled[self.function]
        return made and (lambda: made(*self.arguments))


def softmax(with_backward):
    x, up = normal(*SCORES), normal(*SCORES)
    if not with_backward:
        return lambda: torch.softmax(x, -1)

    def run():
        y = torch.softmax(x, -1)
        return y, aten._softmax_backward_data(up, y, -1, torch.float32)

    return run


def layer_norm(with_backward):
    x, up, w, b = normal(*HIDDEN), normal(*HIDDEN), normal(HIDDEN[1]), normal(HIDDEN[1])
    if not with_backward:
        return lambda: F.layer_norm(x, HIDDEN[1:], w, b)

    def run():
        y, mean, rstd = aten.native_layer_norm(x, HIDDEN[1:], w, b, 1e-5)
        return y, aten.native_layer_norm_backward(up, x, HIDDEN[1:], mean, rstd, w, b,
                                                  [True, True, True])

    return run


def with_gradients(loss, *wrt):
    for tensor in wrt:
        tensor.requires_grad_()

    def run():
        with torch.enable_grad():
            value = loss(*wrt)
            return value, torch.autograd.grad(value, wrt)

    return run


def cross_entropy():
    target = ids(512)
    return with_gradients(lambda x: F.cross_entropy(x, target), normal(512, VOCABULARY))


def linear_cross_entropy():
    target = ids(512)
    return with_gradients(lambda x, w: F.cross_entropy(F.linear(x, w), target), normal(512, 768),
                          normal(VOCABULARY, 768, deviation=0.02))


def embedding():
    table, picked = normal(VOCABULARY, 768), ids(8, 1024)
    return lambda: F.embedding(picked, table)


def embedding_grad():
    up, picked = normal(8, 1024, 768), ids(8, 1024)
    return lambda: aten.embedding_dense_backward(up, picked, VOCABULARY, -1, False)


def update(make):
    weight = torch.nn.Parameter(normal(5000, 4000))
    weight.grad = normal(5000, 4000)
    return make([weight]).step


CASES = {
    "matmul/512": lambda: product(normal(512, 512), normal(512, 512)),
    "matmul/1024": lambda: product(normal(1024, 1024), normal(1024, 1024)),
    "matmul/2048": lambda: product(normal(2048, 2048), normal(2048, 2048)),
    "matmul/2048x768x3072": lambda: product(normal(2048, 768), normal(768, 3072)),
    "matmul/96x256x64x256": lambda: product(normal(96, 256, 64), normal(96, 64, 256)),
}
for problem in ((64, 16, 32, 16, 3), (16, 64, 32, 64, 3), (64, 64, 8, 64, 3), (16, 256, 16, 64, 1)):
    for which in ("forward", "input_grad", "weight_grad"):
        CASES["conv/{}x{}x{}/{}x{}/{}".format(*problem, which)] = (
            lambda problem=problem, which=which: convolution(*problem, which))
for name, shape, causal in (("4x12x1024x64/causal", (4, 12, 1024, 64), True),
                            ("8x4x256x64/causal", (8, 4, 256, 64), True),
                            ("8x12x128x64/full", (8, 12, 128, 64), False)):
    for which in ("forward", "forward_backward"):
        CASES[f"attention/{name}/{which}"] = (
            lambda shape=shape, causal=causal, which=which:
            attention(shape, causal, which == "forward_backward"))
CASES |= {
    "pointwise/gelu_tanh": lambda: Pointwise(gelu_tanh, normal(*WIDE)),
    "pointwise/gelu_tanh_grad": lambda: Pointwise(gelu_tanh_grad, normal(*WIDE), normal(*WIDE)),
    "pointwise/chain_4": lambda: Pointwise(chain_4, *(normal(*WIDE) for _ in range(3))),
    "pointwise/chain_12": lambda: Pointwise(chain_12, *(normal(*WIDE) for _ in range(3))),
    "pointwise/bias_gelu_dropout":
        lambda: Pointwise(bias_gelu_dropout, normal(*WIDE), normal(WIDE[1])),
    "reduce/sum_all": lambda: normal(*WIDE).sum,
    "reduce/sum_rows": lambda: (lambda x: lambda: x.sum(-1))(normal(*WIDE)),
    "reduce/sum_columns": lambda: (lambda x: lambda: x.sum(0))(normal(*WIDE)),
    "reduce/max_rows": lambda: (lambda x: lambda: x.amax(-1))(normal(*WIDE)),
    "softmax/forward": lambda: softmax(False),
    "softmax/forward_backward": lambda: softmax(True),
    "layer_norm/forward": lambda: layer_norm(False),
    "layer_norm/forward_backward": lambda: layer_norm(True),
    "cross_entropy/forward_backward": cross_entropy,
    "linear_cross_entropy/forward_backward": linear_cross_entropy,
    "embedding/forward": embedding,
    "embedding/grad": embedding_grad,
    "adamw/20M": lambda: update(lambda p: torch.optim.AdamW(p, fused=True)),
    "adam/20M": lambda: update(lambda p: torch.optim.Adam(p, fused=True)),
    "sgd/20M": lambda: update(lambda p: torch.optim.SGD(p, lr=0.1, fused=True)),
    "lomo/20M": lambda: update(lambda p: torch.optim.SGD(p, lr=1e-3, fused=True)),
    "adafactor/20M": lambda: update(torch.optim.Adafactor),
}


def measure(work, seconds):
    """Milliseconds of each run, for about `seconds` and at least five runs, after two runs to warm up."""
    work(), work()
    taken, begin = [], time.perf_counter()
    while len(taken) < 5 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        work()
        taken.append((time.perf_counter() - start) * 1e3)
    return taken


def report(name, options):
    if name not in CASES:  # PyTorch has no such thing
        print(json.dumps({"case": name, "version": torch.__version__}), flush=True)
        return
    with torch.no_grad():
        work = CASES[name]()
        taken = measure(work, options.seconds)
        line = {"case": name, "median_ms": statistics.median(taken), "min_ms": min(taken),
                "runs": len(taken), "threads": torch.get_num_threads(),
                "version": torch.__version__}
        if options.compile and isinstance(work, Pointwise) and (compiled := work.compile()):
            taken = measure(compiled, options.seconds)
            line |= {"compiled_median_ms": statistics.median(taken), "compiled_min_ms": min(taken)}
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="parts of the names of the cases to run "
                                                 "(default: all)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.5, help="time given to each measurement")
    parser.add_argument("--no-compile", dest="compile", action="store_false",
                        help="leave torch.compile out")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    parser.add_argument("--serve", action="store_true",
                        help="read names of cases from standard input")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.serve:
        for line in sys.stdin:
            report(line.strip(), options)
        return
    for name in CASES:
        if not options.cases or any(part in name for part in options.cases):
            print(name) if options.list else report(name, options)


if __name__ == "__main__":
    main()
