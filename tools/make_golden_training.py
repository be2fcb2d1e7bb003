#!/usr/bin/env python3
"""Writes tests/golden/training/runs.json: the losses of 20 steps of training in PyTorch, for every family of models, optimizer
and precision, for tests/training_golden_test.cpp to compare with.

Run by a developer, never by the build. Needs PyTorch, transformers and the folders in tests/golden/models and families:
  python3 tools/make_golden_training.py tests/golden [FAMILY...]    # all, or only these; runs of others stay

The file is {"torch": version, "runs": [run, ...]}. A run holds
  family, optimizer, precision   precision: float64, float32, or bfloat16 and float16 by torch.autocast
  accumulate  micro-batches of a step
  losses      of each step, before its update
  evaluation  for models with running statistics: the loss of the first batch in evaluation mode, after the last step
  buffers     and the statistics, by name
The models of transformers start from the weights in tests/golden/models or families, and are trained without dropout. All
other weights and all batches are made by `filled` and `batch`, which the test repeats.
"""
import itertools
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from transformers import (BertForMaskedLM, BertForSequenceClassification, DistilBertForSequenceClassification, GPT2LMHeadModel,
                          GPTNeoXForCausalLM, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM,
                          RobertaForSequenceClassification)

torch.set_num_threads(1)
torch.backends.mkldnn.set_flags(False)  # half products that not every processor has
STEPS = 20
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden")


def filled(shape, key, scale):
    """Numbers in (-scale, scale) that are the same on every machine."""
    count = torch.Size(shape).numel()
    i = torch.arange(count, dtype=torch.int64)
    return (((i * i * 7 + i * (3 + key) + 11 * key) % 101).double() / 101 - 0.5).reshape(shape) * 2 * scale


def fill(model):
    """Parameters by their names in alphabetical order: matrices by their fan-in, scales of norms around 1."""
    for key, (name, p) in enumerate(sorted(model.named_parameters())):
        scale = (3 / p[0].numel()) ** 0.5 if p.dim() > 1 else 0.1
        value = filled(p.shape, key, scale)
        with torch.no_grad():
            p.copy_(value + 1 if "norm" in name and name.endswith("weight") else value)


# --- Models with the names of ebb's

class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, 4)])

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x if i == 0 else torch.relu(x))
        return x


class ConvNorm(nn.Module):
    def __init__(self, inputs, outputs, kernel, stride):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        return self.norm(self.conv(x))


class ResidualBlock(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.layers = nn.ModuleList([ConvNorm(inputs, width, 3, stride), ConvNorm(width, width, 3, 1)])
        self.shortcut = ConvNorm(inputs, width, 1, stride) if stride != 1 or inputs != width else None

    def forward(self, x):
        y = self.layers[1](torch.relu(self.layers[0](x)))
        return torch.relu(y + (self.shortcut(x) if self.shortcut else x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = ConvNorm(2, 4, 3, 1)
        self.blocks = nn.ModuleList([ResidualBlock(4, 4, 1), ResidualBlock(4, 6, 2)])
        self.classifier = nn.Linear(6, 4)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.classifier(x.mean((2, 3)))


class Shared(nn.Module):
    """One batch norm that is called twice in a forward."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(2)
        self.classifier = nn.Linear(2, 4)

    def forward(self, x):
        return self.classifier(self.norm(torch.relu(self.norm(x)) + x).square().mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width, heads, size):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, heads * size) for _ in range(3))
        self.out = nn.Linear(heads * size, width)

    def forward(self, x):
        q, k, v = (t.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for t in (self.query(x), self.key(x), self.value(x)))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, hidden, heads, size):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, size)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(61, 12), nn.Embedding(16, 12)
        self.blocks = nn.ModuleList([Block(12, 20, 2, 6)])
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, 61, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[:ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def own(kind):
    model = kind().double()  # a run in float64 begins with all digits
    fill(model)
    return model


PUBLISHED = {"bert": BertForSequenceClassification, "gpt2": GPT2LMHeadModel, "llama": LlamaForCausalLM}  # in golden/models
FURTHER = {  # in golden/families
    "mistral": MistralForCausalLM,  # with a window of 5 tokens
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,  # with a window of 4 tokens in the second layer
    "gpt_neox": GPTNeoXForCausalLM,
    "roberta": RobertaForSequenceClassification,
    "distilbert": DistilBertForSequenceClassification,
    "bert_masked": BertForMaskedLM,
}
OWN = {"mlp": Mlp, "resnet": ResNet, "shared": Shared, "lm": LanguageModel}
CLASSIFIERS = {"bert", "roberta", "distilbert"}


def made(family):
    if family in OWN:
        return own(OWN[family])
    folder, kinds = ("models", PUBLISHED) if family in PUBLISHED else ("families", FURTHER)
    # Without dropout.
    return kinds[family].from_pretrained(FOLDER / folder / family, attn_implementation="eager").eval()


def batch(family, step, dtype):
    if family in ("mlp", "resnet", "shared"):
        shape = (8, 6) if family == "mlp" else (8, 2, 4, 4)
        return filled(shape, 40 + step, 1.0).to(dtype), torch.tensor([(3 * i + step) % 4 for i in range(8)])
    rows, width = (4, 8) if family in CLASSIFIERS or family == "bert_masked" else (4, 9)
    # Not the token for padding, 0 in BERT and 1 in RoBERTa: transformers never trains its row of the table.
    first = 2 if family == "roberta" else 1
    ids = torch.tensor([first + (7 * i * i + 3 * i + 5 * step) % (61 - first) for i in range(rows * width)]).view(rows, width)
    if family in CLASSIFIERS:
        return ids, torch.tensor([(i + step) % 3 for i in range(rows)])
    if family == "bert_masked":  # every fourth token is to be predicted; 5 stands in its place
        hidden = (torch.arange(rows * width).view(rows, width) + step) % 4 == 0
        return ids.masked_fill(hidden, 5), ids.masked_fill(~hidden, -100)
    return ids[:, :-1], ids[:, 1:]


def loss_of(family, model, x, y):
    logits = model(x) if family in OWN else model(input_ids=x).logits
    return F.cross_entropy(logits.flatten(0, -2).float() if logits.dtype != torch.float64 else logits.flatten(0, -2), y.flatten())


# --- Optimizers

class Lion(torch.optim.Optimizer):
    """Chen et al., 2023, algorithm 2."""

    def __init__(self, parameters, lr, weight_decay):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.sub_(group["lr"] * ((0.9 * m + 0.1 * p.grad).sign() + group["weight_decay"] * p))
                m.mul_(0.99).add_(p.grad, alpha=0.01)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.05, weight_decay=0.1, eps=(1e-15, 1e-3)),
    "lion": lambda p: Lion(p, lr=0.003, weight_decay=0.1),
}
PRECISIONS = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def numbers(t):
    return [float(f"{v:.13g}") for v in t.detach().double().reshape(-1).tolist()]


def run(family, optimizer, precision, accumulate=1):
    half = PRECISIONS[precision] if precision.endswith("16") else None
    dtype = torch.float32 if half else PRECISIONS[precision]
    model = made(family).to(dtype)
    trained = OPTIMIZERS[optimizer](list(model.parameters()))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=precision == "float16")
    autocast = lambda: torch.autocast("cpu", dtype=half, enabled=half is not None)
    losses = []
    for step in range(STEPS):
        x, y = batch(family, step, dtype)
        trained.zero_grad()
        total = 0.0
        for part_x, part_y in zip(x.chunk(accumulate), y.chunk(accumulate)):
            with autocast():
                loss = loss_of(family, model, part_x, part_y) * (len(part_x) / len(x))
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.step(trained)
        scaler.update()
        losses.append(float(f"{total:.13g}"))
    record = {"family": family, "optimizer": optimizer, "precision": precision, "accumulate": accumulate, "losses": losses}
    if list(model.buffers()) and family in ("resnet", "shared"):
        model.eval()
        with torch.no_grad(), autocast():
            record["evaluation"] = float(f"{loss_of(family, model, *batch(family, 0, dtype)).item():.13g}")
        record["buffers"] = {n: numbers(b) for n, b in sorted(model.named_buffers()) if "num_batches" not in n}
    return record


def main():
    wanted = list(itertools.product((*OWN, *PUBLISHED), OPTIMIZERS, PRECISIONS, (1,)))
    # Running statistics move with every micro-batch, in their order.
    wanted += [(f, "sgd", p, accumulate) for f, p, accumulate in itertools.product(("resnet", "shared"), PRECISIONS, (2, 4))]
    wanted += [(f, "adamw", "float64", 4) for f in ("mlp", "gpt2", "bert", "llama", "lm")]
    # Adafactor's update depends on the borders of tensors. GPT-NeoX has queries, keys and values in one, ebb in three.
    wanted += [w for w in itertools.product(FURTHER, OPTIMIZERS, ("float64", "float32"), (1,))
               if w[:2] != ("gpt_neox", "adafactor")]
    wanted += itertools.product(FURTHER, ("sgd", "adamw"), ("bfloat16",), (1,))
    names = sys.argv[2:]
    if unknown := set(names) - {w[0] for w in wanted}:
        sys.exit(f"no such family: {', '.join(sorted(unknown))}")
    path = FOLDER / "training" / "runs.json"
    start = f'{{"torch":"{torch.__version__.split("+")[0]}","runs":['
    kept = {}  # lines by what they ran
    if names:
        old = path.read_text().splitlines()
        if old[0] != start:
            sys.exit(f"{path} is of another version of PyTorch: {old[0]}")
        for line in (line.rstrip(",") for line in old[1:-1]):
            r = json.loads(line)
            kept[r["family"], r["optimizer"], r["precision"], r["accumulate"]] = line
    lines = [json.dumps(run(*w), separators=(",", ":"), allow_nan=False) if not names or w[0] in names else kept[w] for w in wanted]
    path.write_text(start + "\n" + ",\n".join(lines) + "\n]}\n")
    print(f"{len(lines)} runs, {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
