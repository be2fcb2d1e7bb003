#!/usr/bin/env python3
"""Writes tests/golden/differential.json.gz: PyTorch's results for thousands of small calls, for tests/differential_test.cpp.

Run by a developer when a case is added, never by the build:  python3 tools/make_differential.py tests/golden/differential.json.gz

tests/golden/*.json (tools/make_golden.py) has a few calls of each op in float64. Here every op is called in every dtype it has,
on odd ranks, on sizes 0 and 1, on NaN, infinities and both zeros, and with arguments that must be refused. The calls are in
tools/differential.

The file is {"torch": version, "cases": [case, ...]}. A case holds
  op          the row of tests/support/golden_rows.cpp that computes it
  attributes  numbers, texts and lists the row reads
  inputs      [{shape, dtype, values}]
  outputs     [{shape, dtype, values, weights?}], or in their place
  refused     why this call is an error: "PyTorch refuses", or the rule of ebb's that PyTorch does not have
  grads       a list of values for each input, or null: of sum(output * weights) over all outputs that have weights
  vectors     numbers like the gradients, and
  second      the gradients of sum(gradient * vector): second derivatives
Everything is computed by PyTorch in the dtype of the case. Numbers are in row-major order; what is not finite is a string.
"""
import gzip
import json
import sys
from pathlib import Path

import torch

from differential import edges, elementwise, layers, reductions, shapes
from differential.recording import cases


def main():
    for fill in (*elementwise.FILLS, *reductions.FILLS, *shapes.FILLS, *layers.FILLS, *edges.FILLS):
        fill()
    lines = ",\n".join(json.dumps(c, separators=(",", ":"), allow_nan=False) for c in cases)
    text = f'{{"torch":"{torch.__version__.split("+")[0]}","cases":[\n{lines}\n]}}\n'
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/differential.json.gz")
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    ops = {c["op"] for c in cases}
    fewest = sorted((sum(c["op"] == op for c in cases), op) for op in ops)[:8]
    print(f"{len(cases)} cases of {len(ops)} rows, {path.stat().st_size / 1024:.0f} KiB; fewest: {fewest}")


if __name__ == "__main__":
    main()
