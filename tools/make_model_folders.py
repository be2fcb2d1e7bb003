#!/usr/bin/env python3
"""Small GPT-2, BERT and Llama folders with random weights, made by transformers, with the losses it computes for them.

Run by a developer, never by CI: writes tests/golden/models/. Its files are

  gpt2/ bert/ llama/           plain folders
  gpt2-own-head/ llama-shards/ folders with parts that a change of fields alone cannot show
  losses.json                  the loss of each folder
  activations.json             values of the activations that config.json may name
  variants.json                the losses of the plain folders after changes to their config.json

With folders as arguments (written by ebb), loads each in transformers instead and prints its loss on the same tokens."""
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from transformers.activations import ACT2FN
from transformers import (BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM, logging)

TOKENS = [(7 * i * i + 3 * i) % 61 for i in range(2 * 12)]  # two rows of twelve
LABELS = [2, 0]
MASK_FROM = 9  # the second row's tokens from here on are padding, for BERT
CLASSES = {"gpt2": GPT2LMHeadModel, "bert": BertForSequenceClassification, "llama": LlamaForCausalLM}

ACTIVATIONS = ["relu", "gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh",
               "gelu_python_tanh", "silu", "swish", "tanh", "sigmoid", "linear", "leaky_relu", "relu6", "relu2",
               "gelu_10", "quick_gelu", "hardswish", "mish", "laplace", "sqrtsoftplus"]
SHARED = [  # fields that change nothing, for every family
    {"use_cache": False, "bos_token_id": 3, "eos_token_id": [4, 5], "torch_dtype": "float32", "_name_or_path": "elsewhere",
     "temperature": 0.5, "max_length": 30, "tokenizer_class": "PreTrainedTokenizer", "gradient_checkpointing": True},
    {"initializer_range": 0.5, "output_hidden_states": True, "attn_implementation": "eager",
     "chunk_size_feed_forward": 3, "return_dict": False},
    {"pad_token_id": 5},
]
VARIANTS = {
    "gpt2": SHARED + [{"activation_function": name} for name in ("gelu", "gelu_fast", "swish", "relu2")] + [
        {"n_head": 2}, {"n_head": 8, "num_attention_heads": 8}, {"layer_norm_epsilon": 0.01},
        {"scale_attn_weights": False}, {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}, {"reorder_and_upcast_attn": True},
        {"n_inner": 64}, {"n_ctx": 7}, {"is_decoder": True}, {"num_labels": 1}, {"problem_type": "regression"},
        {"summary_type": "mean", "summary_use_proj": False}, {"attn_pdrop": 0.5, "embd_pdrop": 0.3, "resid_pdrop": 0}],
    "llama": SHARED + [{"hidden_act": name} for name in ("swish", "gelu", "relu", "gelu_pytorch_tanh")] + [
        {"rms_norm_eps": 0.01}, {"rope_parameters": {"rope_theta": 500, "rope_type": "default"}},
        {"rope_parameters": None, "rope_theta": 500}, {"rope_theta": 500},
        {"rope_scaling": {"rope_theta": 300.0, "type": "default"}}, {"rope_parameters": {}, "rope_theta": 70.0},
        {"tie_word_embeddings": True}, {"pretraining_tp": 2}, {"attention_dropout": 0.5}, {"attention_dropout": None},
        {"head_dim": None}, {"pad_token_id": -1}, {"num_labels": 1}],
    "bert": SHARED + [{"hidden_act": name} for name in ("swish", "gelu_new", "relu", "gelu_fast")] + [
        {"layer_norm_eps": 0.01}, {"num_attention_heads": 2}, {"tie_word_embeddings": False},
        {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.2, "classifier_dropout": 0.7},
        {"id2label": {"0": "no", "1": "yes", "2": "perhaps"}, "label2id": {"no": 0, "yes": 1, "perhaps": 2}},
        {"problem_type": "single_label_classification"}, {"problem_type": "multi_label_classification"},
        {"problem_type": "regression"}, {"pad_token_id": -1}, {"num_labels": 3}],
}


def loss_of(model):
    model = model.double().eval()
    model.config.return_dict = True
    ids = torch.tensor(TOKENS).view(2, 12)
    if isinstance(model, BertForSequenceClassification):
        mask = torch.ones_like(ids)
        mask[1, MASK_FROM:] = 0
        labels = torch.tensor(LABELS)
        if model.config.problem_type in ("multi_label_classification", "regression"):
            labels = torch.nn.functional.one_hot(labels, model.config.num_labels).double()
        return model(input_ids=ids, attention_mask=mask, labels=labels).loss.item()
    logits = model(input_ids=ids[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()


def with_fields(folder, fields):
    """The loss of a folder after a change of its config.json."""
    with tempfile.TemporaryDirectory() as copy:
        copy = Path(copy) / "model"
        shutil.copytree(folder, copy)
        config = json.loads((copy / "config.json").read_text())
        config.update(fields)
        (copy / "config.json").write_text(json.dumps(config))
        return loss_of(CLASSES[config["model_type"]].from_pretrained(copy))


def save(folder, models):
    losses = {}
    for name, model in models.items():
        for parameter in model.parameters():  # larger than the usual start, so that every part matters
            torch.nn.init.normal_(parameter, std=0.3)
        shutil.rmtree(folder / name, ignore_errors=True)
        model.save_pretrained(folder / name, max_shard_size="4KB" if name == "llama-shards" else "1GB")
        losses[name] = loss_of(model)
        for extra in (folder / name).glob("generation_config.json"):
            extra.unlink()
    return losses


def make(folder):
    small = dict(vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                 max_position_embeddings=16)
    torch.manual_seed(0)
    models = {
        "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=61, n_positions=16, n_embd=16, n_layer=2, n_head=4)),
        "bert": BertForSequenceClassification(BertConfig(**small, num_labels=3)),
        "llama": LlamaForCausalLM(LlamaConfig(**small, num_key_value_heads=2)),
    }
    losses = save(folder, models)
    torch.manual_seed(1)
    models = {
        "gpt2-own-head": GPT2LMHeadModel(GPT2Config(vocab_size=61, n_positions=16, n_embd=8, n_layer=1, n_head=2,
                                                    n_inner=12, tie_word_embeddings=False)),
        "llama-shards": LlamaForCausalLM(LlamaConfig(**{**small, "hidden_size": 8, "num_attention_heads": 2},
                                                     num_key_value_heads=1, head_dim=6, attention_bias=True,
                                                     mlp_bias=True)),
    }
    losses.update(save(folder, models))
    (folder / "losses.json").write_text(json.dumps(losses, indent=1) + "\n")
    rows = []
    for name, variants in VARIANTS.items():
        config = json.loads((folder / name / "config.json").read_text())
        # Every field that transformers' class has, at its default where the folder does not say.
        defaults = {k: v for k, v in CLASSES[name].config_class().to_dict().items() if k not in config}
        for fields in variants + [defaults]:
            rows.append(dict(model=name, fields=fields, loss=with_fields(folder / name, fields)))
    points = torch.tensor([-12.0, -4.0, -1.0, -0.3, 0.0, 0.2, 1.0, 2.9, 3.1, 7.0, 12.0], dtype=torch.float64)
    table = {name: ACT2FN[name](points).tolist() for name in ACTIVATIONS}
    (folder / "activations.json").write_text(json.dumps({"x": points.tolist(), **table}, indent=None) + "\n")
    (folder / "variants.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def check(folder):
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    model, info = CLASSES[kind].from_pretrained(folder, output_loading_info=True)
    print(json.dumps({"folder": str(folder), "loss": loss_of(model), "missing": sorted(info["missing_keys"]),
                      "unexpected": sorted(info["unexpected_keys"])}))


if __name__ == "__main__":
    logging.set_verbosity_error()
    if len(sys.argv) > 1:
        for argument in sys.argv[1:]:
            check(Path(argument))
    else:
        make(Path("tests/golden/models"))
