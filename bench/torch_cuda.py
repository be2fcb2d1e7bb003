#!/usr/bin/env python3
"""Training steps in PyTorch on a GPU: the peers of bench/cuda.py.

usage: torch_cuda.py CASE...     prints a JSON line for each: step_ms (median), peak_bytes (max_memory_allocated)
cases: gpt2:VARIANT gpt2-350m:VARIANT gpt2-xl:VARIANT llama:VARIANT llama-64:VARIANT resnet50:VARIANT bert:VARIANT adamw:VARIANT;
variants as the functions below say
"""
import contextlib
import functools
import gc
import json
import statistics
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj, self.fc, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in self.qkv(self.ln1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, vocabulary, context, layers, heads, d):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, d), nn.Embedding(context, d)
        self.blocks, self.ln = nn.Sequential(*(Block(d, heads) for _ in range(layers))), nn.LayerNorm(d)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.ln(self.blocks(self.wte(ids) + self.wpe.weight[: ids.shape[1]]))
        return F.cross_entropy(F.linear(x, self.wte.weight).flatten(0, 1), targets.flatten())


class Bottleneck(nn.Module):
    def __init__(self, i, p, stride):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(i, p, 1, bias=False), nn.BatchNorm2d(p), nn.ReLU(inplace=True),
                                  nn.Conv2d(p, p, 3, stride, 1, bias=False), nn.BatchNorm2d(p), nn.ReLU(inplace=True),
                                  nn.Conv2d(p, 4 * p, 1, bias=False), nn.BatchNorm2d(4 * p))
        self.short = nn.Sequential() if stride == 1 and i == 4 * p else nn.Sequential(
            nn.Conv2d(i, 4 * p, 1, stride, bias=False), nn.BatchNorm2d(4 * p))

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


def resnet50_model():
    layers, i = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)], 64
    for p, n, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for k in range(n):
            layers.append(Bottleneck(i, p, stride if k == 0 else 1))
            i = 4 * p
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 10))


def timed(step, iterations):
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(iterations):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return {"step_ms": statistics.median(times), "peak_bytes": torch.cuda.max_memory_allocated()}


def offloaded_by_fsdp(model):
    """Parameters, gradients and optimizer state in pinned memory of the host; one rank, a group for each block."""
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    policy = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16), "offload_policy": CPUOffloadPolicy()}
    for block in model.blocks:
        fully_shard(block, **policy)
    return fully_shard(model, **policy)


def gpt2(variant, layers=12, heads=12, d=768, batch=16, iterations=20):
    """fp32, bf16 (autocast), bf16+compile, bf16+save-on-cpu (activations in pinned memory), bf16+fsdp-offload"""
    torch.set_float32_matmul_precision("high" if "bf16" in variant else "highest")
    by_fsdp = "fsdp-offload" in variant
    with torch.device("cpu" if by_fsdp else "cuda"):
        model = Gpt2(50257, 1024, layers, heads, d)
    if by_fsdp:
        model = offloaded_by_fsdp(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    run = torch.compile(model) if "compile" in variant else model
    ids, targets = (torch.randint(0, 50257, (batch, 1024), device="cuda") for _ in range(2))
    saving = torch.autograd.graph.save_on_cpu(pin_memory=True) if "save-on-cpu" in variant else contextlib.nullcontext()

    def step():
        with saving, torch.autocast("cuda", dtype=torch.bfloat16, enabled="bf16" in variant and not by_fsdp):
            loss = run(ids, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return timed(step, iterations)


def llama(variant, layers=16, width=2048, heads=16, key_heads=4, hidden=5632, vocabulary=32000, batch=4, sequence=2048):
    """bf16 (autocast), bf16+compile, bf16+compile+checkpoint (every block)"""
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.set_float32_matmul_precision("high")
    config = LlamaConfig(vocab_size=vocabulary, hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers,
                         num_attention_heads=heads, num_key_value_heads=key_heads, max_position_embeddings=sequence,
                         tie_word_embeddings=False, attn_implementation="sdpa", use_cache=False)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    model.train()
    if "checkpoint" in variant:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    run = torch.compile(model) if "compile" in variant else model
    ids = torch.randint(0, vocabulary, (batch, sequence), device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return timed(step, 10)


def resnet50(variant, batch=256):
    """bf16, bf16+compile: channels last"""
    torch.backends.cudnn.benchmark = True
    model = resnet50_model().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    run = torch.compile(model) if "compile" in variant else model
    x = torch.randn(batch, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,), device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled="bf16" in variant):
            loss = F.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return timed(step, 20)


def bert(variant, batch=32, sequence=512):
    """fp16 (autocast and GradScaler), fp32; each with +compile or eager"""
    from transformers import BertConfig, BertForSequenceClassification
    with torch.device("cuda"):
        model = BertForSequenceClassification(BertConfig(num_labels=4, attn_implementation="sdpa"))
    model.train()
    torch.set_float32_matmul_precision("highest")
    run = torch.compile(model) if "compile" in variant else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    half = "fp16" in variant
    scaler = torch.amp.GradScaler("cuda", enabled=half)
    ids = torch.randint(0, 30522, (batch, sequence), device="cuda")
    labels = torch.randint(0, 4, (batch,), device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.float16, enabled=half):
            loss = run(input_ids=ids, labels=labels).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return timed(step, 8)


def adamw(_variant, count=1 << 28):
    """one fused update of 2^28 float32 parameters: 28 bytes each"""
    p = nn.Parameter(torch.randn(count, device="cuda"))
    p.grad = torch.randn_like(p)
    result = timed(torch.optim.AdamW([p], fused=True).step, 20)
    result["bytes_per_s"] = 28 * count / result["step_ms"] * 1e3
    return result


CASES = {
    "gpt2": gpt2, "llama": llama, "resnet50": resnet50, "bert": bert, "adamw": adamw,
    "gpt2-350m": functools.partial(gpt2, layers=24, heads=16, d=1024, batch=8),
    "gpt2-xl": functools.partial(gpt2, layers=48, heads=25, d=1600, batch=4, iterations=10),
    "llama-64": functools.partial(llama, layers=24, width=1024, heads=16, key_heads=16, hidden=2816, batch=8, sequence=1024),
}


def main():
    for case in sys.argv[1:]:
        work, _, variant = case.partition(":")
        torch.manual_seed(0)
        torch._dynamo.reset()
        result = CASES[work](variant)
        print(json.dumps({"case": case, **result}), flush=True)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
