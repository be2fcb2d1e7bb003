#!/usr/bin/env python3
"""Generation beside transformers, greedy, with random weights: tokens a second of decode steps and the share of the
memory bandwidth that they reach.

usage: generate.py EBB [--models gpt2,gpt2-xl,llama-8b] [--batches 1,64] [--prompt 16] [--tokens 128]
                   [--device cuda|cpu] [--precision bf16|fp32] [--bits 16,8,4] [--bandwidth GB/s] [--folders DIR]
                   [--peer-modes reduce-overhead,max-autotune-no-cudagraphs] [--without-peer]
       EBB: the program ebb

Makes the folders itself (in --folders, or in a temporary place). On a GPU the peer is transformers with torch.compile
(the best of --peer-modes) and a static cache; on the CPU it is transformers without compilation, with its dynamic
cache. With --bits 8 or 4 ebb stores the weights of linear layers in fewer bits; the peer runs at --precision only. Both generate the same number of tokens for the same prompts;
the peer's time is that of its decode steps alone. Prints one JSON document.

--bandwidth: of the device's memory, to compute the share: (weights + keys and values read) per step, at --precision. Default: 4800 on a
GPU (H200), measured by a copy on the CPU.
"""
import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

CONFIGS = {
    "gpt2-tiny": GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=1000),
    "gpt2": GPT2Config(),
    "gpt2-xl": GPT2Config(n_layer=48, n_embd=1600, n_head=25),
    "llama-tiny": LlamaConfig(vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024),
    "llama-1b": LlamaConfig(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
                            num_attention_heads=32, num_key_value_heads=4, max_position_embeddings=2048),
    "llama-8b": LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                            num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192,
                            rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def make_folder(name, folder, dtype, device):
    """Weights with transformers' names and shapes, drawn one tensor at a time on the device."""
    if (folder / "model.safetensors").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator(device).manual_seed(1)
    tied = getattr(config, "tie_word_embeddings", False)
    tensors = {}
    for key, value in model.state_dict().items():
        if tied and key == "lm_head.weight":
            continue
        if value.dim() < 2:
            tensors[key] = torch.full(value.shape, 0.0 if key.endswith("bias") else 1.0, dtype=dtype)
        else:
            drawn = torch.randn(value.shape, generator=generator, device=device)
            tensors[key] = drawn.mul_(0.02).to(dtype).cpu()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = [type(model).__name__]
    config.dtype = dtype
    config.save_pretrained(folder)


def prompts_of(batch, length, vocabulary):
    return [[(7 * i * i + 13 * row + 5) % vocabulary for i in range(length)] for row in range(batch)]


def bytes_per_step(config, parameters, batch, prompt, tokens, size):
    """Of one decode step: every weight that is multiplied once, and the keys and values of half of the run."""
    embedding = config.vocab_size * config.hidden_size
    tied = getattr(config, "tie_word_embeddings", False)
    weights = parameters - (0 if tied else embedding)
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache = 2 * config.num_hidden_layers * kv_heads * head * (prompt + tokens / 2) * batch
    return (weights + cache) * size


def run_ebb(program, folder, prompts, tokens, bits, options):
    command = [program, "generate", "--model", str(folder), "--max-tokens", str(tokens), "--greedy", "--ignore-end",
               "--precision", options.precision, "--device", options.device, "--json"]
    if bits != 16:
        command += ["--bits", str(bits)]
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"ids": prompt}) + "\n" for prompt in prompts))
    command += ["--batch", str(path), "--sequences", str(len(prompts))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return {"error": done.stderr.strip() or done.stdout.strip()}
    report = json.loads(done.stdout.strip().splitlines()[-1])
    report["ms_per_step"] = 1e3 * report["decode_seconds"] / max(report["decode_steps"], 1)
    return report


@torch.no_grad()
def run_peer(folder, prompts, tokens, options):
    """The better of the ways to run decode steps; ids of the first prompt."""
    from transformers import StaticCache
    device, dtype = options.device, DTYPES[options.precision]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    ids = torch.tensor(prompts, device=device)
    batch, length = ids.shape
    best = None
    modes = options.peer_modes.split(",") if device.startswith("cuda") else [None]
    for mode in modes:
        step = model if mode is None else torch.compile(model, mode=mode, fullgraph=True)
        rates = []
        for _ in range(3):  # the first compiles
            arguments = {}
            if mode is not None:
                arguments["past_key_values"] = StaticCache(config=model.config, max_cache_len=length + tokens)
            out = model(ids, cache_position=torch.arange(length, device=device), use_cache=True, **arguments)
            cache = out.past_key_values
            token = out.logits[:, -1:].argmax(-1)
            position = torch.tensor([length], device=device)
            produced = [token]
            synchronize(device)
            start = time.perf_counter()
            for _ in range(tokens - 1):
                if mode == "reduce-overhead":
                    torch.compiler.cudagraph_mark_step_begin()
                out = step(token, cache_position=position, past_key_values=cache, use_cache=True)
                token = out.logits[:, -1:].argmax(-1).clone()
                produced.append(token)
                position += 1
            synchronize(device)
            rates.append(batch * (tokens - 1) / (time.perf_counter() - start))
        if best is None or rates[-1] > best["tokens_per_s"]:
            best = {"tokens_per_s": rates[-1], "mode": mode or "eager", "ids": torch.cat(produced, 1)[0].tolist()}
        torch.compiler.reset()
    if device.startswith("cuda"):
        best["peak_bytes"] = torch.cuda.max_memory_allocated()
    return best


def synchronize(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def copy_bandwidth():
    """Bytes a second that reading a large tensor reaches on this machine's CPU."""
    data = torch.ones(1 << 27)
    rates = []
    for _ in range(5):
        start = time.perf_counter()
        data.sum()
        rates.append(data.numel() * 4 / (time.perf_counter() - start))
    return max(rates) * 1e-9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ebb")
    parser.add_argument("--models", default="gpt2,gpt2-xl,llama-8b")
    parser.add_argument("--batches", default="1,64")
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16", choices=DTYPES)
    parser.add_argument("--bits", default="16", help="of the weights of linear layers; 16: as --precision says")
    parser.add_argument("--bandwidth", type=float)
    parser.add_argument("--peer-modes", default="reduce-overhead,max-autotune-no-cudagraphs")
    parser.add_argument("--folders", type=pathlib.Path)
    parser.add_argument("--without-peer", action="store_true")
    options = parser.parse_args()
    bandwidth = options.bandwidth or (4800.0 if options.device.startswith("cuda") else copy_bandwidth())
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.models.split(","):
            folder = (options.folders or pathlib.Path(temporary)) / f"{name}-{options.precision}"
            make_folder(name, folder, DTYPES[options.precision], options.device)
            config = CONFIGS[name]
            with torch.device("meta"):
                parameters = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
            for batch, bits in itertools.product(map(int, options.batches.split(",")), map(int, options.bits.split(","))):
                prompts = prompts_of(batch, options.prompt, config.vocab_size)
                ours = run_ebb(options.ebb, folder, prompts, options.tokens, bits, options)
                row = {"model": name, "batch": batch, "parameters": parameters, "precision": options.precision,
                       "bits": bits, "device": options.device, "prompt": options.prompt, "tokens": options.tokens}
                if "error" in ours:
                    row["error"] = ours["error"]
                else:
                    moved = bytes_per_step(config, parameters, batch, options.prompt, options.tokens,
                                           BYTES[options.precision])
                    row["ebb"] = {key: ours[key] for key in ("tokens_per_s", "ms_per_step", "planned_peak_bytes",
                                                             "measured_peak_bytes")}
                    if bits == 16:
                        row["ebb"]["bandwidth_share"] = moved / (ours["ms_per_step"] * 1e-3) / (bandwidth * 1e9)
                if not options.without_peer and bits == 16:
                    try:
                        peer = run_peer(folder, prompts, options.tokens, options)
                        row["transformers"] = {key: value for key, value in peer.items() if key != "ids"}
                        if "ebb" in row:
                            row["ratio"] = ours["tokens_per_s"] / peer["tokens_per_s"]
                            row["same_ids"] = sum(a == b for a, b in zip(ours["ids"][0], peer["ids"])) / options.tokens
                    except Exception as error:  # what the peer cannot run is part of the result
                        row["transformers"] = {"error": f"{type(error).__name__}: {error}"[:400]}
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
    print(json.dumps({"bandwidth_gb_per_s": bandwidth, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
