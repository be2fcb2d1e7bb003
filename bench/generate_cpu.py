#!/usr/bin/env python3
"""Compares generation on the CPU with llama.cpp and transformers: tokens a second of decode steps and of prompts, and the
peak memory of each process.

usage: generate_cpu.py EBB [--models gpt2,gpt2-xl] [--bits 16,8,4] [--llama-bench FILE] [--transformers]
                       [--threads 2] [--prompt 64] [--tokens 64] [--repeats 3] [--folders DIR] [--cache-bits 8]
       EBB: the program ebb
       --llama-bench: llama.cpp's program of that name; needs the Python package gguf
       --transformers: also run transformers, at 16 bits only

Makes GPT-2 folders with random bfloat16 weights (bench/generate.py) and the same weights as GGUF files, in --folders or
a temporary place. Bits are of the matrices of linear layers: bf16, q8_0 or q4_0 for llama.cpp. Token embeddings, which
are also the head, are bf16 in both, and so are keys and values (8 bits with --cache-bits 8, q8_0 for llama.cpp). Runs of all programs take turns, --repeats times, and the best of each counts. Peaks are
the largest resident sizes that the operating system reports. Prints one JSON document.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import types

import generate

TENSORS = {"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
           "ln_1": "attn_norm", "ln_2": "ffn_norm"}


def gguf_name(name):
    """Of a tensor of transformers' GPT-2, and whether it is stored transposed there."""
    path, kind = name.removeprefix("transformer.").rsplit(".", 1)
    if path == "wte":
        return "token_embd.weight", False
    if path == "wpe":
        return "position_embd.weight", False
    if path == "ln_f":
        return f"output_norm.{kind}", False
    _, block, part = path.split(".", 2)
    return f"blk.{block}.{TENSORS[part]}.{kind}", kind == "weight" and not part.startswith("ln")


def write_gguf(folder, config, bits, path):
    import gguf
    import torch
    from safetensors import safe_open

    types_of = {16: gguf.GGMLQuantizationType.BF16, 8: gguf.GGMLQuantizationType.Q8_0,
                4: gguf.GGMLQuantizationType.Q4_0}
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "gpt2")
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    with safe_open(folder / "model.safetensors", "pt") as tensors:
        for name in tensors.keys():
            value = tensors.get_tensor(name).to(torch.float32)
            to, transposed = gguf_name(name)
            value = (value.T if transposed else value).contiguous().numpy()
            if value.ndim < 2 or to == "position_embd.weight":
                writer.add_tensor(to, value)
                continue
            kind = types_of[16 if to == "token_embd.weight" else bits]
            writer.add_tensor(to, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)


# Starts a program from a small process: the peak that wait4 tells counts what the parent held at the fork.
STARTER = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
output = process.stdout.read()
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024, output.decode()]))
"""


def run(command):
    """Standard output and the peak resident bytes of a process."""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", STARTER, *command], capture_output=True, text=True,
                          check=True)
    code, peak, output = json.loads(done.stdout)
    if code != 0:
        raise RuntimeError(f"{command[0]} ended with {code}")
    return output, peak


def run_ebb(options, folder, config, bits):
    prompt = generate.prompts_of(1, options.prompt, config.vocab_size)[0]
    command = [options.ebb, "generate", "--model", str(folder), "--prompt-ids", ",".join(map(str, prompt)),
               "--max-tokens", str(options.tokens + 1), "--ignore-end", "--precision", "bf16", "--json",
               "--threads", str(options.threads)]
    if bits != 16:
        command += ["--bits", str(bits)]
    if options.cache_bits:
        command += ["--cache-bits", str(options.cache_bits)]
    output, peak = run(command)
    report = json.loads(output.strip().splitlines()[-1])
    return {"tokens_per_s": report["tokens_per_s"],
            "prompt_tokens_per_s": report["prompt_tokens"] / report["prefill_seconds"],
            "planned_peak_bytes": report["planned_peak_bytes"], "process_peak_bytes": peak}


def run_llama(options, file):
    cache = "q8_0" if options.cache_bits else "bf16"
    command = [options.llama_bench, "-m", str(file), "-p", str(options.prompt), "-n", str(options.tokens), "-t",
               str(options.threads), "-r", "1", "-ctk", cache, "-ctv", cache, "-o", "json"]
    if options.cache_bits:
        command += ["-fa", "on"]
    output, peak = run(command)
    speeds = {bool(row["n_gen"]): row["avg_ts"] for row in json.loads(output)}
    return {"tokens_per_s": speeds[True], "prompt_tokens_per_s": speeds[False], "process_peak_bytes": peak}


def run_transformers(options, folder):
    command = [sys.executable, __file__, options.ebb, "--one-peer", str(folder), "--threads", str(options.threads),
               "--prompt", str(options.prompt), "--tokens", str(options.tokens)]
    output, peak = run(command)
    return {"tokens_per_s": json.loads(output)["tokens_per_s"], "process_peak_bytes": peak}


def one_peer(options):
    import torch
    torch.set_num_threads(options.threads)
    folder = pathlib.Path(options.one_peer)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    prompts = generate.prompts_of(1, options.prompt, vocabulary)
    done = generate.run_peer(folder, prompts, options.tokens + 1,
                             types.SimpleNamespace(device="cpu", precision="bf16", peer_modes=""))
    print(json.dumps({"tokens_per_s": done["tokens_per_s"]}))


def best(results):
    """The fastest of each, and the smallest peaks."""
    return {key: (min if key.endswith("bytes") else max)(r[key] for r in results) for key in results[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ebb")
    parser.add_argument("--models", default="gpt2,gpt2-xl")
    parser.add_argument("--bits", default="16,8,4")
    parser.add_argument("--cache-bits", type=int, choices=[8])
    parser.add_argument("--llama-bench")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folders", type=pathlib.Path)
    parser.add_argument("--only-files", action="store_true", help="make folders and GGUF files, and run nothing")
    parser.add_argument("--one-peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_peer:
        return one_peer(options)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.models.split(","):
            folder = (options.folders or pathlib.Path(temporary)) / f"{name}-bf16"
            config = generate.CONFIGS[name]
            generate.make_folder(name, folder, generate.DTYPES["bf16"], "cpu")
            for bits in map(int, options.bits.split(",")):
                runs = {"ebb": lambda: run_ebb(options, folder, config, bits)}
                if options.llama_bench:
                    file = folder / f"{bits}.gguf"
                    if not file.exists():
                        write_gguf(folder, config, bits, file)
                    runs["llama.cpp"] = lambda: run_llama(options, file)
                if options.transformers and bits == 16:
                    runs["transformers"] = lambda: run_transformers(options, folder)
                if options.only_files:
                    continue
                results = {program: [] for program in runs}
                for _ in range(options.repeats):
                    for program, once in runs.items():
                        results[program].append(once())
                row = {"model": name, "bits": bits, "cache_bits": options.cache_bits or 16, "threads": options.threads,
                       "prompt": options.prompt, "tokens": options.tokens}
                row |= {program: best(list_) for program, list_ in results.items()}
                for program in row.keys() & {"llama.cpp", "transformers"}:
                    row[f"ebb / {program}"] = row["ebb"]["tokens_per_s"] / row[program]["tokens_per_s"]
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
    print(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
