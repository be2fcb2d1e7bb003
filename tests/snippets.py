#!/usr/bin/env python3
"""Makes one source file of all C++ code in the documentation, for the compiler to check.

  tests/snippets.py ROOT OUT.cpp

A block that begins with "// examples/" is a file of the examples, which are built and run; docs_test.cpp compares them. The
blocks of docs/adding-an-op.md are excerpts of the op `rotary`: each of their lines must stand in its sources. Any other block
needs a row in CONTEXTS, which says what is around it.
"""
import pathlib
import re
import sys

# By page, for each of its blocks in order: "" for declarations, or else the parameters of a function that has the block as
# its body.
CONTEXTS = {
    "docs/generation.md": ["int"],
    "docs/hugging-face.md": ["int"],
    "docs/multilevel.md": [""],
    "docs/onnx.md": ["models::Mlp& model"],
    "docs/planner.md": [
        "FourBlocks& model, nn::Linear& block, const Tensor& x, const LossFunction& loss, "
        "const std::vector<TensorType>& types"
    ],
    "docs/techniques/lora.md": ["int"],
    "docs/techniques/low-bits.md": [
        "int", "io::ModelFolder& folder, const LossFunction& loss, const std::vector<Batch>& batches"
    ],
    "docs/techniques/offload.md": ["int"],
    "docs/techniques/pruning.md": [
        "models::ResNet& model, const LossFunction& loss, const TensorType& images, const TensorType& labels, "
        "const std::vector<Batch>& batches", "", "io::ModelFolder& other"
    ],
    "docs/tokenizers.md": ["int"],
}

PRELUDE = """\
#include <ebb/ebb.h>
#include <ebb/generate/generator.h>
#include <ebb/io/adapter.h>
#include <ebb/io/open_lm.h>
#include <ebb/models/meta_weight_net.h>
#include <ebb/models/mlp.h>
#include <ebb/models/resnet.h>
#include <ebb/nn/adapt.h>
#include <ebb/prune/score.h>
#include <ebb/recompute.h>
#include <ebb/text/tokenizer.h>

#include <functional>
#include <iostream>
{includes}
using namespace ebb;

struct FourBlocks : nn::Module<FourBlocks> {{
  nn::Linear blocks[4] = {{{{at("0"), 8, 8}}, {{at("1"), 8, 8}}, {{at("2"), 8, 8}}, {{at("3"), 8, 8}}}};
  Tensor forward(const Tensor& x) {{ return blocks[3](blocks[2](blocks[1](blocks[0](x)))); }}
}};
"""


def without_space(text):
    return re.sub(r"\s+", "", text)


def main():
    root, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    rotary = without_space("".join(path.read_text() for path in sorted((root / "src/ops/rotary").iterdir()))
                           + (root / "src/ops/list.h").read_text())
    includes, code, problems = set(), [], []
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        name = page.relative_to(root).as_posix()
        blocks = [b for b in re.findall(r"^```cpp\n(.*?)^```", page.read_text(), re.S | re.M)
                  if not b.startswith("// examples/")]
        if name.startswith("docs/api/"):  # made from the headers, which are compiled
            continue
        if name == "docs/adding-an-op.md":
            problems += [f"{name}: not in src/ops/rotary: {line}" for block in blocks for line in block.splitlines()
                         if without_space(line) not in rotary]
            continue
        contexts = CONTEXTS.get(name, [])
        if len(contexts) != len(blocks):
            problems.append(f"{name}: {len(blocks)} blocks of C++, but {len(contexts)} rows in CONTEXTS of tests/snippets.py")
            continue
        for i, (block, context) in enumerate(zip(blocks, contexts)):
            lines = block.splitlines()
            includes |= {line for line in lines if line.startswith("#include")}
            body = "\n".join(line for line in lines if not line.startswith("#include"))
            scope = re.sub(r"\W", "_", f"{page.stem}_{i}")
            code.append(f"// {name}\nnamespace {scope} {{\n"
                        + (f"void snippet({context}) {{\n{body}\n}}\n" if context else body + "\n")
                        + f"}}  // namespace {scope}\n")
    if problems:
        sys.exit("\n".join(problems))
    text = PRELUDE.format(includes="\n".join(sorted(includes))) + "\n" + "\n".join(code)
    if not out.exists() or out.read_text() != text:
        out.write_text(text)


if __name__ == "__main__":
    main()
