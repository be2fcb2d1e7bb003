#!/usr/bin/env python3
"""Small folders of further model families with random weights, made by transformers, with losses and gradients.

    tools/make_model_families.py [NAME...]    # all, or only these; rows of others stay

Run by a developer, never by CI: writes tests/golden/families/. Its files are

  NAME/           a folder for each family
  families.json   for each folder, and for changes to its config.json: the loss, and the norm of each parameter's
                  gradient by its name in the file, all in float64

The tokens and labels are those of make_model_folders.py."""
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from make_model_folders import LABELS, MASK_FROM, TOKENS
from transformers import (AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification, BertConfig,
                          DistilBertConfig, GPTNeoXConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, RobertaConfig)

SMALL = dict(vocab_size=61, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=16, pad_token_id=None)
CONFIGS = {
    "llama": LlamaConfig(**SMALL, num_key_value_heads=2, head_dim=6),
    "mistral": MistralConfig(**SMALL, num_key_value_heads=2, head_dim=6, sliding_window=5),
    "qwen2": Qwen2Config(**{**SMALL, "num_attention_heads": 3}, num_key_value_heads=1),
    "qwen3": Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=6, use_sliding_window=True, sliding_window=4,
                         max_window_layers=1),
    "gpt_neox": GPTNeoXConfig(**{**SMALL, "hidden_size": 24, "num_attention_heads": 3},
                              rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}),
    "roberta": RobertaConfig(**{**SMALL, "pad_token_id": 1, "max_position_embeddings": 18}, num_labels=3,
                             type_vocab_size=1),
    "distilbert": DistilBertConfig(vocab_size=61, dim=12, hidden_dim=20, n_layers=2, n_heads=4,
                                   max_position_embeddings=16, num_labels=3),
    "bert_masked": BertConfig(**{**SMALL, "pad_token_id": 0}),
    "roberta_masked": RobertaConfig(**{**SMALL, "pad_token_id": 1, "max_position_embeddings": 18}, type_vocab_size=1),
    "distilbert_masked": DistilBertConfig(vocab_size=61, dim=12, hidden_dim=20, n_layers=2, n_heads=4,
                                          max_position_embeddings=16),
}
SCALED = [  # rotary settings
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.5, "high_freq_factor": 2.0,
     "original_max_position_embeddings": 100},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 300, "beta_fast": 16, "beta_slow": 2,
     "truncate": False},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 200, "attention_factor": 0.7},
    {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 1.2},
]
VARIANTS = {
    "llama": [{"rope_parameters": {"rope_theta": 50.0, **scaled}} for scaled in SCALED] +
             [{"rope_parameters": None, "rope_theta": 700.0, "rope_scaling": {"type": "linear", "factor": 3.0}}],
    "mistral": [{"sliding_window": 1}, {"sliding_window": None}, {"sliding_window": 30}],
    "qwen2": [{"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0, "layer_types": None},
              {"rope_parameters": {"rope_theta": 50.0, **SCALED[4]}}],
    "qwen3": [{"use_sliding_window": False, "layer_types": None},
              {"layer_types": ["sliding_attention", "full_attention"]}],
    "gpt_neox": [{"use_parallel_residual": False}, {"hidden_act": "gelu_new"}, {"layer_norm_eps": 0.01},
                 {"rope_parameters": None, "rotary_pct": 0.25, "rotary_emb_base": 500},
                 {"rope_parameters": {"partial_rotary_factor": 1.0, **SCALED[0], "rope_theta": 90.0}}],
    "roberta": [{"hidden_act": "relu"}, {"layer_norm_eps": 0.01}, {"problem_type": "regression"}],
    "distilbert": [{"activation": "relu"}, {"problem_type": "multi_label_classification"}],
    "bert_masked": [{"hidden_act": "relu"}, {"layer_norm_eps": 0.01}],
    "roberta_masked": [{"hidden_act": "relu"}, {"layer_norm_eps": 0.01}],
    "distilbert_masked": [{"activation": "relu"}],
}
CLASSIFIERS = {"roberta", "distilbert"}
MASKED = {"bert_masked", "roberta_masked", "distilbert_masked"}
# Of the 2 x 12 tokens: those to be predicted, and what stands in their place; 5 is the mask, one stays, one is another.
HIDDEN = {1: 5, 4: None, 7: 5, 13: 17, 15: 5}


def kinds_of(kind):
    if kind in MASKED:
        return AutoModelForMaskedLM
    return AutoModelForSequenceClassification if kind in CLASSIFIERS else AutoModelForCausalLM


def open_model(kind, folder):
    return kinds_of(kind).from_pretrained(folder, attn_implementation="eager")


def measured(kind, folder):
    """The loss, and the norms of the gradients."""
    model = open_model(kind, folder).double().eval()
    ids = torch.tensor(TOKENS).view(2, 12)
    if kind in CLASSIFIERS:
        mask = torch.ones_like(ids)
        mask[1, MASK_FROM:] = 0
        labels = torch.tensor(LABELS)
        if model.config.problem_type in ("multi_label_classification", "regression"):
            labels = torch.nn.functional.one_hot(labels, model.config.num_labels).double()
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    elif kind in MASKED:
        mask = torch.ones_like(ids)
        mask[1, MASK_FROM:] = 0
        labels = torch.full_like(ids, -100).flatten()
        shown = ids.clone().flatten()
        for place, token in HIDDEN.items():
            labels[place] = shown[place]
            if token is not None:
                shown[place] = token
        loss = model(input_ids=shown.view(2, 12), attention_mask=mask, labels=labels.view(2, 12)).loss
    else:
        logits = model(input_ids=ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    # A parameter that is not reached has no gradient, and a part of nothing is 0.
    stored = {"lm_head.weight": "embed_out.weight"} if kind == "gpt_neox" else {}  # otherwise than in memory
    norms = {stored.get(name, name): 0.0 if p.grad is None else p.grad.norm().item() for name, p in model.named_parameters()}
    return {"loss": loss.item(), "gradients": norms}


def make(folder, names):
    known = json.loads((folder / "families.json").read_text()) if names else []
    rows = [row for row in known if row["model"] not in names]
    for name, config in CONFIGS.items():
        if names and name not in names:
            continue
        torch.manual_seed(0)
        model = kinds_of(name).from_config(config)
        for parameter in model.parameters():  # larger than the usual start, so that every part matters
            torch.nn.init.normal_(parameter, std=0.4)
        place = folder / name
        shutil.rmtree(place, ignore_errors=True)
        model.save_pretrained(place)
        for extra in place.glob("generation_config.json"):
            extra.unlink()
        rows.append({"model": name, "fields": {}, **measured(name, place)})
        for fields in VARIANTS[name]:
            with tempfile.TemporaryDirectory() as copy:
                copy = Path(copy) / "model"
                shutil.copytree(place, copy)
                saved = json.loads((copy / "config.json").read_text())
                saved.update(fields)
                (copy / "config.json").write_text(json.dumps(saved))
                rows.append({"model": name, "fields": fields, **measured(name, copy)})
    (folder / "families.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    make(Path("tests/golden/families"), sys.argv[1:])
