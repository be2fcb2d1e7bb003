#!/usr/bin/env python3
"""One training step in PyTorch on the CPU, eager or compiled: the peer of `ebb train` for bench/steps.py.

usage: torch_step.py gpt2|llama|resnet|bert THREADS STEPS [compile]   prints one JSON line: step_ms (median after 3), peak and idle RSS"""
import json
import resource
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Gpt2Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj, self.fc, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.h, c // self.h).transpose(1, 2) for p in self.qkv(self.ln1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """4 blocks of width 256, 4 heads, context 256, vocabulary 5000; the head is the token embedding."""

    def __init__(self, v=5000, t=256, n=4, h=4, d=256):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(v, d), nn.Embedding(t, d)
        self.blocks, self.ln = nn.Sequential(*(Gpt2Block(d, h) for _ in range(n))), nn.LayerNorm(d)

    def forward(self, ids, targets):
        x = self.ln(self.blocks(self.wte(ids) + self.wpe.weight[: ids.shape[1]]))
        return F.cross_entropy(F.linear(x, self.wte.weight).flatten(0, 1), targets.flatten())


def rotated(x, angles):  # x (batch, heads, tokens, size), angles (tokens, size / 2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


class LlamaBlock(nn.Module):
    def __init__(self, d, h, kv, hidden):
        super().__init__()
        self.h, self.kv, self.size = h, kv, d // h
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.k, self.v = (nn.Linear(d, n * self.size, bias=False) for n in (h, kv, kv))
        self.o, self.gate, self.up = nn.Linear(d, d, bias=False), nn.Linear(d, hidden, bias=False), nn.Linear(d, hidden, bias=False)
        self.down = nn.Linear(hidden, d, bias=False)

    def forward(self, x, angles):
        b, t, c = x.shape
        y = self.n1(x)
        q, k, v = (p(y).view(b, t, n, self.size).transpose(1, 2) for p, n in ((self.q, self.h), (self.k, self.kv), (self.v, self.kv)))
        y = F.scaled_dot_product_attention(rotated(q, angles), rotated(k, angles), v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, c))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """4 blocks of width 256, 4 heads, 2 of keys, 704 neurons, context 256, vocabulary 5000."""

    def __init__(self, v=5000, t=256, n=4, h=4, kv=2, d=256, hidden=704):
        super().__init__()
        self.wte, self.ln, self.head = nn.Embedding(v, d), nn.RMSNorm(d), nn.Linear(d, v, bias=False)
        self.blocks = nn.ModuleList(LlamaBlock(d, h, kv, hidden) for _ in range(n))
        size = d // h
        angles = torch.outer(torch.arange(t), 10000.0 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, ids, targets):
        x = self.wte(ids)
        for block in self.blocks:
            x = block(x, self.angles[: ids.shape[1]])
        return F.cross_entropy(self.head(self.ln(x)).flatten(0, 1), targets.flatten())


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.c2, self.b2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.short = nn.Sequential() if stride == 1 and i == o else nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False),
                                                                                   nn.BatchNorm2d(o))

    def forward(self, x):
        return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + self.short(x))


def resnet32():
    layers, i = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()], 16
    for stage, o in enumerate((16, 32, 64)):
        for k in range(5):
            layers.append(BasicBlock(i, o, 2 if stage > 0 and k == 0 else 1))
            i = o
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def main():
    kind, threads, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if kind == "bert":
        from transformers import BertConfig, BertForSequenceClassification
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if kind in ("gpt2", "llama"):
        model, data = Gpt2() if kind == "gpt2" else Llama(), (torch.randint(0, 5000, (8, 256)), torch.randint(0, 5000, (8, 256)))
        loss, optimizer = (lambda: model(*data)), torch.optim.AdamW(model.parameters(), lr=3e-4)
    elif kind == "resnet":
        model, data = resnet32(), (torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,)))
        loss = lambda: F.cross_entropy(model(data[0]), data[1])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    else:
        model = BertForSequenceClassification(BertConfig(num_labels=4)).train()
        ids, labels, mask = torch.randint(0, 30522, (8, 128)), torch.randint(0, 4, (8,)), torch.ones(8, 128, dtype=torch.long)
        loss = lambda: model(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    if "compile" in sys.argv[4:]:
        loss = torch.compile(loss)
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(1e3 * (time.perf_counter() - begin))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"workload": kind, "torch": torch.__version__, "step_ms": statistics.median(times[3:] or times),
                      "process_peak_bytes": peak, "above_idle_bytes": peak - idle,
                      "params": sum(p.numel() for p in model.parameters())}))


if __name__ == "__main__":
    main()
