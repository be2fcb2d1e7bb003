#!/usr/bin/env python3
"""Greedy continuations by transformers of the small golden folders. Run by a developer, never by CI: writes
tests/golden/models/generated.json from the folders of tools/make_model_folders.py."""
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

MODELS = Path(__file__).resolve().parent.parent / "tests/golden/models"
FOLDERS = ["gpt2", "gpt2-own-head", "llama", "llama-shards"]


def prompts(vocabulary):
    """Of unequal lengths, with ids that a formula gives."""
    return [[(5 * i * i + 3 * i + 7 * length) % vocabulary for i in range(length)] for length in (1, 3, 8, 5)]


def main():
    result = {}
    for name in FOLDERS:
        model = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float64).eval()
        config = model.config
        context = getattr(config, "n_positions", None) or config.max_position_embeddings
        cases = []
        for prompt in prompts(config.vocab_size):
            count = min(12, context - len(prompt))
            given = torch.tensor([prompt])
            ids = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False,
                                 eos_token_id=-1, pad_token_id=0)[0].tolist()
            cases.append({"prompt": prompt, "ids": ids[len(prompt):]})
        result[name] = cases
    text = ",\n".join(f' "{name}": [\n' + ",\n".join("  " + json.dumps(case) for case in cases) + "]"
                      for name, cases in result.items())
    (MODELS / "generated.json").write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
    main()
