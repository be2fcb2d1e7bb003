#!/usr/bin/env python3
"""Runs exported models in onnxruntime and compares them with ebb.

  check_onnx.py CASES EBB [--transformers] [--keep FOLDER]

CASES is the program made from make_cases.cpp, EBB the command line. Every file must pass ONNX's checker. For float32,
logits must be within 1e-4 of ebb's, for every opset. Half types are compared with ebb's half types, and the same weights
computed in float32 with ebb's float32. Generation with the cache must be that without. --transformers also compares with
transformers, where the family has a Hugging Face form. Ends with 77 where onnx or onnxruntime is not installed.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import ml_dtypes
    import numpy as np
    import onnx
    import onnxruntime
    from onnx.reference import ReferenceEvaluator
except ImportError as error:
    print(f"skipped: {error}; pip install onnx onnxruntime, and name that Python by -DEBB_ONNX_PYTHON")
    sys.exit(77)

EXACT = 1e-4
# Relative to the largest logit: activations are rounded to 11 or 8 bits some 20 times, in another order than ebb's. The
# bound is 8 roundings; the largest difference found was 3.
HALF = {"float16": 8 * 2.0**-11, "bfloat16": 8 * 2.0**-8}
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "I64": np.int64}
FREE_AXES = ("batch_size", "sequence_length", "past_sequence_length", "total_sequence_length", "height", "width")

worst = {}  # of each kind of comparison, the largest difference and its case


def read_safetensors(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    result = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[8 + length + begin:8 + length + end], DTYPES[entry["dtype"]])
        result[name] = values.reshape(entry["shape"])
    return result


def half_of(case):
    """The half type in a case's name, or nothing."""
    last = case.split("-")[-1]
    return last if last in HALF else None


def runs_of(tensors):
    """Inputs and expected results of every run."""
    for number in sorted({int(name.split(".")[0]) for name in tensors}):
        run = {name.split(".", 1)[1]: value for name, value in tensors.items() if name.startswith(f"{number}.")}
        expected = {name: run.pop(name) for name in list(run) if name.startswith("logits")}
        yield run, expected


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def compare(kind, case, got, expected, tolerance):
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    if got.shape != expected.shape:
        raise AssertionError(f"{case}: {kind}: shape {got.shape}, but {expected.shape} is expected")
    difference = float(np.max(np.abs(got - expected), initial=0.0))
    if tolerance != EXACT:
        tolerance *= max(1.0, float(np.max(np.abs(expected))))
    if not difference <= tolerance:  # NaN fails too
        raise AssertionError(f"{case}: {kind}: differs by {difference:.3g}, more than {tolerance:.3g}")
    if difference >= worst.get(kind, (0.0, ""))[0]:
        worst[kind] = (difference, case)


def check_file(path, weights):
    """The checker, names of axes, and weights: names, types and bytes as in safetensors."""
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(str(path))
    for port in list(model.graph.input) + list(model.graph.output):
        for axis in port.type.tensor_type.shape.dim:
            if axis.WhichOneof("value") == "dim_param" and axis.dim_param not in FREE_AXES:
                raise AssertionError(f"{path}: {port.name} has an axis {axis.dim_param}")
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for name, value in (weights or {}).items():
        if name.endswith("decoder.bias"):  # a second name of the same tensor
            continue
        if stored[name].dtype != value.dtype or stored[name].tobytes() != value.tobytes():
            raise AssertionError(f"{path}: {name} is not the tensor of the model")


def unpacked_int4(tensor):
    """The values of an int4 initializer: two to a byte, the first in the lower half."""
    data = np.frombuffer(tensor.raw_data, np.uint8)
    halves = np.stack([data & 15, data >> 4], 1).reshape(-1).astype(np.int8)
    count = int(np.prod(tensor.dims))
    return np.where(halves > 7, halves - 16, halves)[:count].reshape(tensor.dims)


def check_quantised(path, weights):
    """The checker; every quantised weight is within half a step of the weight, and takes its bits."""
    onnx.checker.check_model(str(path), full_check=True)
    graph = onnx.load(str(path)).graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    bits, block, found = int(path.stem[3:]), {8: 128, 4: 32}[int(path.stem[3:])], 0
    for name, tensor in tensors.items():
        if tensor.data_type not in (onnx.TensorProto.INT8, onnx.TensorProto.INT4):
            continue
        found += 1
        count = int(np.prod(tensor.dims))
        if len(tensor.raw_data) != (count * bits + 7) // 8:
            raise AssertionError(f"{path}: {name} takes {len(tensor.raw_data)} bytes")
        codes = np.frombuffer(tensor.raw_data, np.int8).reshape(tensor.dims) if bits == 8 else unpacked_int4(tensor)
        scales = np.repeat(onnx.numpy_helper.to_array(tensors[name + "_scale"]), block, 1)[:, :tensor.dims[1]]
        if not weights:
            continue
        weight = weights[name]
        weight = weight if weight.shape == codes.shape and "c_" not in name else weight.T
        # Scales of int4 are rounded to 8 bits of a group's range, so values at the ends move further.
        error = np.max(np.abs(codes * scales - weight) / np.maximum(scales, 1e-12))
        if not error <= (0.51 if bits == 8 else 2.0):
            raise AssertionError(f"{path}: {name} is off by {error:.3g} steps")
    if found == 0:
        raise AssertionError(f"{path}: no weight is quantised")


def check_case(folder):
    case = folder.name
    tensors = read_safetensors(folder / "runs.safetensors")
    hf = folder / "hf" / "model.safetensors"
    weights = read_safetensors(hf) if hf.exists() else None
    dtype = half_of(case) or "float32"
    quantised = {}
    for path in sorted(folder.glob("*.onnx")):
        if path.stem in ("int8", "int4"):
            check_quantised(path, weights)
            quantised[path.stem] = session(path)
        else:
            check_file(path, weights)
    exact = {} if dtype != "float32" else {path.stem: session(path) for path in sorted(folder.glob("opset*.onnx"))}
    if dtype != "bfloat16":  # onnxruntime has no bfloat16 products on the CPU
        model = session(folder / "model.onnx")
        evaluate = lambda inputs: model.run(["logits"], inputs)[0]
    else:
        evaluator = ReferenceEvaluator(str(folder / "model.onnx"))
        evaluate = lambda inputs: evaluator.run(["logits"], inputs)[0]
    wide = session(folder / "float32.onnx") if dtype != "float32" else None
    for inputs, expected in runs_of(tensors):
        tolerance = HALF.get(dtype, EXACT)
        compare(f"{dtype} with ebb", case, evaluate(inputs), expected["logits"], tolerance)
        for opset, one in exact.items():
            compare("other opsets with ebb", f"{case}, {opset}", one.run(["logits"], inputs)[0], expected["logits"], EXACT)
        for bits, model_in_bits in quantised.items():
            got = model_in_bits.run(["logits"], inputs)[0]
            if f"logits_{bits}" in expected:
                compare(f"{bits} weights with ebb", case, got, expected[f"logits_{bits}"], EXACT)
        if wide:
            cast = {k: v.astype(np.float32) if k == "input" else v for k, v in inputs.items()}
            compare(f"{dtype} weights, computed in float32, with ebb", case, wide.run(["logits"], cast)[0],
                    expected["logits_float32"], EXACT)


def empty_cache(model, batch):
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    return {port.name: np.zeros((batch, port.shape[1], 0, port.shape[3]), types[port.type])
            for port in model.get_inputs() if port.name.startswith("past_key_values.")}


def step(model, ids, mask, cache):
    """Feeds tokens that follow those of the cache; returns logits and the new cache."""
    names = [port.name for port in model.get_outputs()]
    results = dict(zip(names, model.run(None, {"input_ids": ids, "attention_mask": mask, **cache})))
    logits = results.pop("logits")
    return logits, {name.replace("present", "past_key_values"): value for name, value in results.items()}


def generate(model, prompt, mask, count):
    """Greedy tokens, and the logits from which each was chosen."""
    cache, fed, tokens, chosen_by = empty_cache(model, len(prompt)), prompt, [], []
    for _ in range(count):
        logits, cache = step(model, fed, mask, cache)
        chosen_by.append(logits[:, -1])
        fed = np.argmax(logits[:, -1], -1).astype(np.int64)[:, None]
        tokens.append(fed)
        mask = np.concatenate([mask, np.ones_like(fed)], 1)
    return np.concatenate(tokens, 1), np.stack(chosen_by, 1)


def check_cache(folder, tolerance):
    case = folder.name
    plain, cached = session(folder / "model.onnx"), session(folder / "cache.onnx")
    prompt = (np.arange(15, dtype=np.int64).reshape(3, 5) * 11 + 2) % 61
    count = 8
    tokens, by_cache = generate(cached, prompt, np.ones_like(prompt), count)
    ids = prompt
    for i in range(count):
        logits = plain.run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0][:, -1]
        compare(f"cache with no cache ({logits.dtype})", case, by_cache[:, i], logits, tolerance)
        if tolerance == EXACT and not np.array_equal(np.argmax(logits, -1), tokens[:, i]):
            raise AssertionError(f"{case}: token {i} differs without the cache")
        ids = np.concatenate([ids, tokens[:, i:i + 1]], 1)
    # Several tokens behind a cache, and prompts of different lengths with padding before them.
    whole = plain.run(["logits"], {"input_ids": prompt, "attention_mask": np.ones_like(prompt)})[0]
    _, cache = step(cached, prompt[:, :2], np.ones((3, 2), np.int64), empty_cache(cached, 3))
    rest, _ = step(cached, prompt[:, 2:], np.ones((3, 5), np.int64), cache)
    compare(f"cache with no cache ({rest.dtype})", case, rest, whole[:, 2:], tolerance)
    padded = np.concatenate([np.zeros((3, 4), np.int64), prompt], 1)
    mask = np.concatenate([np.zeros((3, 4), np.int64), np.ones_like(prompt)], 1)
    for model in (plain, cached):
        extra = empty_cache(model, 3)
        behind = model.run(["logits"], {"input_ids": padded, "attention_mask": mask, **extra})[0][:, 4:]
        compare(f"padded prompts ({behind.dtype})", case, behind, whole, tolerance)
    padded_tokens, _ = generate(cached, padded, mask, count)
    if tolerance == EXACT and not np.array_equal(padded_tokens, tokens):
        raise AssertionError(f"{case}: padding before a prompt changes what is generated")


def check_command_line(ebb, folder):
    """The command line writes the file that the library does, from the saved folder."""
    for flags, name in (([], "model.onnx"), (["--with-cache", "--external-data"], "cache.onnx"),
                        (["--opset", "21"], "opset21.onnx"), (["--compute", "float32"], "float32.onnx"), (["--bits", "int8"], "int8.onnx"),
                        (["--bits", "int4", "--opset", "21"], "int4.onnx")):
        if not (folder / name).exists():
            continue
        made = folder / "by_command_line"
        made.mkdir(exist_ok=True)
        result = subprocess.run([ebb, "export", "--model", folder / "hf", "--onnx", made / name, "--json", *flags],
                                check=True, capture_output=True, text=True)
        facts = json.loads(result.stdout)
        if (made / name).read_bytes() != (folder / name).read_bytes():
            raise AssertionError(f"{folder.name}: ebb export {' '.join(flags)} writes another file than the library")
        if facts["file_bytes"] != (made / name).stat().st_size:
            raise AssertionError(f"{folder.name}: the file has not the size that ebb export says")
        if "external_file" in facts:
            data = pathlib.Path(facts["external_file"])
            if data.read_bytes() != (folder / f"{name}.data").read_bytes():
                raise AssertionError(f"{folder.name}: ebb export writes other external data than the library")


def check_transformers(folder):
    import torch
    import transformers
    architecture = json.loads((folder / "hf" / "config.json").read_text())["architectures"][0]
    head = "ForCausalLM" if "LMHead" in architecture else architecture[architecture.index("For"):]
    auto = getattr(transformers, "AutoModel" + head)
    model = auto.from_pretrained(folder / "hf", dtype=torch.float32, attn_implementation="eager").eval()
    exported = session(folder / "model.onnx")
    for inputs, _ in runs_of(read_safetensors(folder / "runs.safetensors")):
        with torch.no_grad():
            expected = model(**{k: torch.tensor(v) for k, v in inputs.items()}).logits.numpy()
        compare("float32 with transformers", folder.name, exported.run(["logits"], inputs)[0], expected, EXACT)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases")
    parser.add_argument("ebb")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--keep", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.keep or pathlib.Path(temporary)
        subprocess.run([arguments.cases, root], check=True, stdout=subprocess.DEVNULL)
        folders = sorted(path for path in root.iterdir() if path.is_dir())
        if len(folders) < 60:
            raise AssertionError(f"only {len(folders)} cases")
        for folder in folders:
            check_case(folder)
            half = half_of(folder.name)
            if (folder / "cache.onnx").exists() and half != "bfloat16":
                check_cache(folder, HALF[half] if half else EXACT)
            if (folder / "hf").exists():
                check_command_line(arguments.ebb, folder)
                if arguments.transformers and not half:
                    check_transformers(folder)
    for kind, (difference, case) in sorted(worst.items()):
        print(f"{kind}: at most {difference:.3g} ({case})")
    print(f"{len(folders)} cases, onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}")


if __name__ == "__main__":
    main()
