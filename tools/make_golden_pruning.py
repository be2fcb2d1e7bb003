#!/usr/bin/env python3
"""Reference values for pruning: small matrices by numpy, and losses of pruned folders by transformers.

  tools/make_golden_pruning.py build/release/ebb    writes tests/golden/pruning/weights.json

Run by a developer, never by CI. The matrices are pruned by straightforward float64 versions of Wanda and of SparseGPT's
Algorithm 1. The folders are those of tests/golden/models, pruned by `ebb prune` and loaded in transformers."""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
FOLDERS = [
    ("gpt2", "--keep 0.5 --structure neurons"),
    ("gpt2", "--keep 0.5 --structure blocks"),
    ("gpt2", "--pattern 2:4"),
    ("llama", "--keep 0.5"),
    ("llama", "--keep 0.3 --structure neurons,blocks"),
    ("llama", "--sparsity 0.6"),
    ("bert", "--keep 0.5"),
]


def sparsegpt(weight, inputs, share, pattern, block, damping=0.01):
    w, n = weight.copy(), weight.shape[1]
    hessian = 2.0 / len(inputs) * inputs.T @ inputs
    dead = np.diag(hessian) == 0
    hessian[dead, dead] = 1
    w[:, dead] = 0
    hessian += damping * np.mean(np.diag(hessian)) * np.eye(n)
    upper = np.linalg.cholesky(np.linalg.inv(hessian)).T
    for first in range(0, n, block):
        last = min(first + block, n)
        errors = np.zeros((len(w), last - first))
        mask = np.zeros((len(w), last - first), bool)
        if pattern is None:
            scores = (w[:, first:last] / np.diag(upper)[first:last]) ** 2
            order = np.argsort(scores, axis=None, kind="stable")[:int(share * scores.size)]
            mask.flat[order] = True
        for j in range(first, last):
            if pattern is not None and j % pattern[1] == 0:
                scores = (w[:, j:j + pattern[1]] / np.diag(upper)[j:j + pattern[1]]) ** 2
                lowest = np.argsort(scores, axis=1, kind="stable")[:, :pattern[1] - pattern[0]]
                np.put_along_axis(mask[:, j - first:j - first + pattern[1]], lowest, True, axis=1)
            kept = np.where(mask[:, j - first], 0.0, w[:, j])
            errors[:, j - first] = (w[:, j] - kept) / upper[j, j]
            w[:, j + 1:last] -= np.outer(errors[:, j - first], upper[j, j + 1:last])
            w[:, j] = kept
        w[:, last:] -= errors @ upper[first:last, last:]
    return w


def wanda(weight, inputs, share, pattern):
    w = weight.copy()
    scores = np.abs(w) * np.sqrt(np.sum(inputs ** 2, axis=0))
    run, goes = (w.shape[1], int(share * w.shape[1])) if pattern is None else (pattern[1], pattern[1] - pattern[0])
    for begin in range(0, w.shape[1], run):
        lowest = np.argsort(scores[:, begin:begin + run], axis=1, kind="stable")[:, :goes]
        np.put_along_axis(w[:, begin:begin + run], lowest, 0.0, axis=1)
    return w


def matrices():
    draw = np.random.default_rng(7)
    for outputs, inputs, rows, share, pattern, block, dead in [
            (5, 12, 40, 0.5, None, 12, None), (5, 12, 40, 0.5, None, 4, None), (6, 16, 30, 0.7, None, 8, 3),
            (6, 16, 30, 0.5, (2, 4), 8, None), (4, 16, 12, 0.5, (1, 4), 4, 5), (3, 12, 20, 0.5, (2, 3), 6, None)]:
        # Inputs depend on each other, so that making up for errors matters.
        x = np.round(draw.normal(size=(rows, inputs)) @ draw.normal(size=(inputs, inputs)), 4)
        if dead is not None:
            x[:, dead] = 0
        w = np.round(draw.normal(size=(outputs, inputs)), 4)
        yield {"weight": w.ravel().tolist(), "inputs": x.ravel().tolist(), "outputs": outputs, "columns": inputs,
               "rows": rows, "share": share, "pattern": pattern, "block": block,
               "sparsegpt": sparsegpt(w, x, share, pattern, block).ravel().tolist(),
               "wanda": wanda(w, x, share, pattern).ravel().tolist()}


def folder_loss(folder):
    sys.path.insert(0, str(ROOT / "tools"))
    import make_model_folders as models
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    return models.loss_of(models.CLASSES[kind].from_pretrained(folder))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folders = []
    with tempfile.TemporaryDirectory() as work:
        for i, (model, options) in enumerate(FOLDERS):
            made = Path(work) / str(i)
            subprocess.run([sys.argv[1], "prune", "--model", str(GOLDEN / "models" / model), "--save", str(made),
                            "--json", *options.split()], check=True, stdout=subprocess.DEVNULL)
            folders.append({"model": model, "options": options, "loss": folder_loss(made)})
    text = json.dumps({"matrices": list(matrices()), "folders": folders})
    (GOLDEN / "pruning/weights.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
