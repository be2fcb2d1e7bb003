#!/usr/bin/env python3
"""Adapters made and trained by PEFT on the small models of tests/golden/models, for ebb to be compared with.

Run by a developer, never by CI: writes tests/golden/adapters/. Its files are

  gpt2/ llama/      adapters in PEFT's format, with a B that is not zero
  NAME-after/       the same after five steps of AdamW, computed in float64
  losses.json       for each: the losses of the five steps, the loss after them, and the gradients' norms before the first

With folders as arguments, BASE ADAPTER (written by ebb), loads each pair in PEFT instead and prints its loss on the same tokens."""
import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, logging

TOKENS = [(7 * i * i + 3 * i) % 61 for i in range(2 * 12)]  # two rows of twelve, as in make_model_folders.py
STEPS, RATE = 5, 1e-2
CASES = {"gpt2": {"r": 3, "lora_alpha": 7, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True},
         "llama": {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"]}}
ROOT = Path(__file__).resolve().parent.parent / "tests/golden"


def loss_of(model):
    ids = torch.tensor(TOKENS).view(2, 12)
    logits = model(input_ids=ids[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def base_model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()


def make(name, fields):
    torch.manual_seed(5)
    model = get_peft_model(base_model(ROOT / "models" / name), LoraConfig(**fields), autocast_adapter_dtype=False)
    parameters = [p for p in model.parameters() if p.requires_grad]
    with torch.no_grad():
        for p in parameters:  # values that float32 holds exactly, so that files and float64 agree
            p.copy_((0.2 * torch.randn_like(p)).float().double())

    def save(folder):
        model.peft_config["default"].base_model_name_or_path = name
        model.float().save_pretrained(folder)
        model.double()
        (folder / "README.md").unlink(missing_ok=True)

    save(ROOT / "adapters" / name)
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.1)
    losses, norms = [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        if step == 0:
            norms = {n.replace("base_model.model.", "").replace(".default", ""): p.grad.norm().item()
                     for n, p in model.named_parameters() if p.requires_grad}
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        losses.append(loss_of(model).item())
    save(ROOT / "adapters" / f"{name}-after")
    return {"losses": losses, "gradient_norms": norms}


def main():
    logging.set_verbosity_error()
    if len(sys.argv) > 1:
        for base, adapter in zip(sys.argv[1::2], sys.argv[2::2]):
            model = PeftModel.from_pretrained(base_model(base), adapter, autocast_adapter_dtype=False).double().eval()
            print(adapter, loss_of(model).item())
        return
    facts = {name: make(name, fields) for name, fields in CASES.items()}
    (ROOT / "adapters/losses.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
