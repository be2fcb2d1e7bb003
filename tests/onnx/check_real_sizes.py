#!/usr/bin/env python3
"""Compares exported models of real sizes with transformers.

  check_real_sizes.py EBB

Makes a GPT-2 and a Llama of 125 million random weights with transformers, exports them with `ebb export` and compares
the logits of 2 × 129 tokens in onnxruntime. Needs onnx, onnxruntime, torch and transformers, 2 GB of memory and 1 GB of
disk, so it is no part of the tests.
"""
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
import torch
import transformers


def models():
    yield "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config())
    yield "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
        num_key_value_heads=4, max_position_embeddings=2048))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.manual_seed(0)
    for name, model in models():
        model.eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.mul_(2.0)  # logits of a few units
        with tempfile.TemporaryDirectory() as temporary:
            folder, file = pathlib.Path(temporary) / "hf", pathlib.Path(temporary) / "model.onnx"
            model.save_pretrained(folder)
            subprocess.run([sys.argv[1], "export", "--model", folder, "--onnx", file], check=True,
                           stdout=subprocess.DEVNULL)
            onnx.checker.check_model(str(file), full_check=True)
            ids = torch.randint(0, model.config.vocab_size, (2, 129))
            with torch.no_grad():
                expected = model(ids).logits.numpy()
            session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
            got = session.run(["logits"], {"input_ids": ids.numpy(), "attention_mask": np.ones((2, 129), np.int64)})[0]
        difference, largest = np.max(np.abs(got - expected)), np.max(np.abs(expected))
        count = sum(parameter.numel() for parameter in model.parameters())
        print(f"{name}: {count} parameters, differs by at most {difference:.3g}; logits of up to {largest:.3g}")
        if not difference <= 1e-4:
            sys.exit(f"{name}: more than 1e-4")


if __name__ == "__main__":
    main()
