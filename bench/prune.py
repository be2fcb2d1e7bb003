#!/usr/bin/env python3
"""Pruning on real text and real shapes: the tables of docs/techniques/pruning.md.

  bench/prune.py --model DIR --data FILE --test FILE weights     perplexity after 50 % and 2:4, by method
  bench/prune.py --model DIR --data FILE --test FILE structures  heads and neurons removed, recovered by training; time of evaluation
  bench/prune.py --python PYTHON channels                        a ResNet-50 beside Torch-Pruning, with the same share of channels
  ... --json results.json                                        writes the results as well

The model is a Hugging Face folder of a GPT-2 or a Llama with its tokenizer, --data the text that methods see and recovery
trains on, --test another one. Figures are for reading: none makes the command fail.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time

from runs import run

HERE = pathlib.Path(__file__).resolve().parent


def perplexity(options, folder):
    result = run(options.ebb + ["eval", "--model", str(folder), "--text", options.test, "--batch", "8", "--json"])
    return math.exp(result["loss"]) if result else None


def weights(options, work):
    """Perplexities on the test text after zeros were set, by method."""
    rows = [{"name": "dense", "perplexity": perplexity(options, options.model)}]
    for how in (["--sparsity", "0.5"], ["--pattern", "2:4"]):
        for method in ("magnitude", "wanda", "sparsegpt"):
            made = run(options.ebb + ["prune", "--model", options.model, "--save", str(work / "made"), *how, "--method", method,
                                      "--data", options.data, "--json"])
            rows.append({"name": f"{how[1]} {method}", "perplexity": perplexity(options, work / "made"), "prune": made})
    for row in rows:
        print(f"{row['name']:<20} {row['perplexity']:9.3f}", flush=True)
    return rows


def seconds(command):
    """The shortest of three runs."""
    times = []
    for _ in range(3):
        begin = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.monotonic() - begin)
    return min(times)


def structures(options, work):
    """Keeps 70 % of heads and neurons; some steps of training follow, for the dense model too."""
    rows = []
    made = run(options.ebb + ["prune", "--model", options.model, "--save", str(work / "smaller"), "--keep", "0.7", "--score", "taylor",
                              "--samples", "16", "--data", options.data, "--json"])
    step = made["planned_step"] if made else {}
    for name, folder in (("dense", options.model), ("30 % fewer heads and neurons", work / "smaller")):
        trained = run(options.ebb + ["train", "--model", str(folder), "--data", options.data, "--steps", str(options.recover), "--batch", "8",
                                     "--lr", "3e-4", "--eval-batches", "0", "--save", str(work / "trained"), "--json"])
        rows.append({"name": name, "perplexity": perplexity(options, folder), "recovered": perplexity(options, work / "trained"),
                     "step_ms": trained["step_ms"] if trained else None,
                     "eval_seconds": seconds(options.ebb + ["eval", "--model", str(folder), "--text", options.test, "--batch", "8"]),
                     "bytes": step.get("before" if folder == options.model else "after", {}).get("weights_gradients_state")})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def channels(options, _work):
    """Both remove 30 % of the channels of a ResNet-50 for images of 32 x 32, by magnitude."""
    ours = run(options.ebb + ["train", "--workload", "resnet", "--depth", "50", "--batch", "8", "--steps", "6", "--prune", "0.3",
                              "--prune-schedule", "constant", "--prune-from", "3", "--eval-batches", "0", "--json"])
    peer = run([options.python, str(HERE / "torch_prune.py")])
    print(json.dumps({"ebb": ours and ours.get("pruning"), "torch_pruning": peer}), flush=True)
    return [{"name": "ResNet-50", "ebb": ours, "torch_pruning": peer}]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("weights", "structures", "channels"))
    parser.add_argument("--model", metavar="DIR")
    parser.add_argument("--data", metavar="FILE")
    parser.add_argument("--test", metavar="FILE")
    parser.add_argument("--recover", type=int, default=100, help="steps of training after structures went")
    parser.add_argument("--ebb", nargs="+", default=[str(HERE.parent / "build/release/ebb")], help="the program, or a command that starts it")
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch and torch-pruning (default: this one)")
    parser.add_argument("--json", metavar="FILE", help="write the results here as well")
    options = parser.parse_args()
    if options.part != "channels" and not (options.model and options.data and options.test):
        parser.error(f"{options.part} needs --model, --data and --test")
    with tempfile.TemporaryDirectory() as work:
        results = {"weights": weights, "structures": structures, "channels": channels}[options.part](options, pathlib.Path(work))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
