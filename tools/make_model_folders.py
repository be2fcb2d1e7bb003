#!/usr/bin/env python3
"""Small GPT-2, BERT and Llama folders with random weights, made by transformers, with the losses it computes for them.

Run by a developer, never by CI: writes tests/golden/models/{gpt2,bert,llama}/ and losses.json. With folders as arguments
(written by ebb), loads each in transformers instead and prints its loss on the same tokens."""
import json
import sys
from pathlib import Path

import torch
from transformers import (BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM)

TOKENS = [(7 * i * i + 3 * i) % 61 for i in range(2 * 12)]  # two rows of twelve
LABELS = [2, 0]
MASK_FROM = 9  # the second row's tokens from here on are padding, for BERT


def loss_of(model):
    model = model.double().eval()
    ids = torch.tensor(TOKENS).view(2, 12)
    if isinstance(model, BertForSequenceClassification):
        mask = torch.ones_like(ids)
        mask[1, MASK_FROM:] = 0
        return model(input_ids=ids, attention_mask=mask, labels=torch.tensor(LABELS)).loss.item()
    logits = model(input_ids=ids[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()


def make(folder):
    torch.manual_seed(0)
    models = {
        "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=61, n_positions=16, n_embd=16, n_layer=2, n_head=4)),
        "bert": BertForSequenceClassification(BertConfig(vocab_size=61, hidden_size=16, num_hidden_layers=2,
                                                         num_attention_heads=4, intermediate_size=24,
                                                         max_position_embeddings=16, num_labels=3)),
        "llama": LlamaForCausalLM(LlamaConfig(vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                                              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16)),
    }
    losses = {}
    for name, model in models.items():
        for parameter in model.parameters():  # larger than the usual start, so that every part matters
            torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(folder / name)
        losses[name] = loss_of(model)
        for extra in (folder / name).glob("generation_config.json"):
            extra.unlink()
    (folder / "losses.json").write_text(json.dumps(losses, indent=1) + "\n")


def check(folder):
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    classes = {"gpt2": GPT2LMHeadModel, "bert": BertForSequenceClassification, "llama": LlamaForCausalLM}
    model, info = classes[kind].from_pretrained(folder, output_loading_info=True)
    print(json.dumps({"folder": str(folder), "loss": loss_of(model), "missing": sorted(info["missing_keys"]),
                      "unexpected": sorted(info["unexpected_keys"])}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        for argument in sys.argv[1:]:
            check(Path(argument))
    else:
        make(Path("tests/golden/models"))
