#!/usr/bin/env python3
"""Compares data reweighting with Betty on the same machine: ResNet-50, darts, in one command.

  pip download betty-ml --no-deps && unzip betty_ml-*.whl -d DIR        Betty, which is pure Python
  bench/betty.py --ebb build/release/ebb --betty DIR --json results.json
  bench/betty.py --ebb build/release/ebb --betty DIR fp16               rows whose name holds a word
  bench/betty.py --ebb build/release/ebb --betty DIR --device cpu --classifier mlp --batch 16

Both train the same program, in fp32 with TF32 in convolutions, PyTorch's default: the classifier with weighted losses (SGD 0.1, momentum 0.9, decay 5e-4), and above it
the net that gives the weights (1-100-1, Adam 1e-5) by the loss on balanced data. A step is an update of the classifier
with the step above that follows it; its time is the median, its peak what PyTorch's allocator held (reserved memory and
the context come on top) and what ebb planned. `taken` is what the driver says that ebb took. Betty finds its batches on the device; ebb's
come from its own loader. With accumulation, both levels update by that many micro-batches; their sum is the batch.
Each run has a process of its own, and runs take turns. Ratios are ebb's over Betty's. Prints one JSON document at the
end. Figures are for reading: none makes the command fail.
"""
import argparse
import json
import pathlib
import shlex
import statistics
import sys
import time

from runs import run

HERE = pathlib.Path(__file__).resolve().parent

# Items of an update, precision, micro-batches, the budget that ebb is given with --budgets (each level's own), and the
# ratios aimed at: time, memory.
ROWS = [
    (100, "fp32", 1, "2050MiB", 0.4, 0.4),
    (100, "fp16", 1, "1140MiB", 0.4, 0.4),
    (256, "fp16", 4, "1000MiB", 0.5, 0.5),
]
WARM_UP = 4


def train_with_betty(options):
    """One row in this process; prints a JSON line."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    sys.path.insert(0, str(HERE))
    if options.betty:
        sys.path.insert(0, options.betty)
    from betty.configs import Config, EngineConfig
    from betty.engine import Engine
    from betty.problems import ImplicitProblem
    from torch_cuda import resnet50_model

    torch.manual_seed(0)
    on_gpu = options.device.startswith("cuda")
    half = {"fp16": True} if options.precision == "fp16" else {}

    class Classifier(ImplicitProblem):
        def training_step(self, batch):
            images, labels = batch
            losses = F.cross_entropy(self.module(images), labels, reduction="none").reshape(-1, 1)
            return (self.reweight(losses.detach()) * losses).mean()

    class Reweight(ImplicitProblem):
        def training_step(self, batch):
            images, labels = batch
            return F.cross_entropy(self.classifier(images), labels)

    def batches(seed):
        """A few batches on the device, repeated, so that no time goes to data."""
        items = options.batch // options.accumulate
        draw = torch.Generator().manual_seed(seed)
        return [(torch.randn(items, 3, 32, 32, generator=draw).to(options.device),
                 torch.randint(10, (items,), generator=draw).to(options.device)) for _ in range(4)]

    net = resnet50_model() if options.classifier == "resnet50" else nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 200), nn.ReLU(), nn.Linear(200, 10))
    weights = nn.Sequential(nn.Linear(1, 100), nn.ReLU(), nn.Linear(100, 1), nn.Sigmoid())
    net, weights = net.to(options.device), weights.to(options.device)
    shared = {"type": "darts", "gradient_accumulation": options.accumulate, **half}
    classifier = Classifier(name="classifier", module=net, device=options.device, config=Config(**shared),
                            optimizer=torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4),
                            train_data_loader=batches(1))
    reweight = Reweight(name="reweight", module=weights, device=options.device, config=Config(retain_graph=True, **shared),
                        optimizer=torch.optim.Adam(weights.parameters(), lr=1e-5), train_data_loader=batches(2))
    engine = Engine(config=EngineConfig(train_iters=1, valid_step=10**9), problems=[classifier, reweight],
                    dependencies={"u2l": {reweight: [classifier]}, "l2u": {classifier: [reweight]}})
    engine.train()

    def update():
        for _ in range(options.accumulate):
            engine.global_step += 1
            engine.train_step()
        if on_gpu:
            torch.cuda.synchronize()

    for _ in range(WARM_UP):
        update()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(options.steps):
        begin = time.perf_counter()
        update()
        times.append(1e3 * (time.perf_counter() - begin))
    assert classifier.count == reweight.count * options.accumulate, "every update is followed by a step above"
    print(json.dumps({
        "step_ms": statistics.median(times),
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
        "params": sum(p.numel() for m in (net, weights) for p in m.parameters()),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
    }))


def betty_command(options, batch, precision, accumulate):
    command = [options.python, str(HERE / "betty.py"), "--peer", "--device", options.device, "--classifier", options.classifier,
               "--batch", str(batch), "--precision", precision, "--accumulate", str(accumulate), "--steps", str(options.steps)]
    return command + (["--betty", options.betty] if options.betty else [])


def ebb_command(options, batch, precision, accumulate, budget):
    parts = ["--classifier.accumulate", str(accumulate), "--reweight.accumulate", str(accumulate)] if accumulate > 1 else []
    return [*options.ebb, "train", "--workload", "reweight", "--classifier", options.classifier, "--method", "darts",
            "--batch", str(batch // accumulate), *parts, "--precision", precision, "--device", options.device,
            "--steps", str((WARM_UP + options.steps) * accumulate), "--eval-batches", "0",
            *(["--tf32"] if precision == "fp32" and options.device.startswith("cuda") else []), *(["--budget", budget] if options.budgets else []),
            *options.extra.split(), "--json"]


def middle(runs, key):
    values = [r[key] for r in runs if r and r.get(key) is not None]
    return statistics.median(values) if values else None


def ratio(ours, theirs):
    return ours / theirs if ours is not None and theirs else None


def compare(options, name, batch, precision, accumulate, budget):
    ours, theirs = [], []
    commands = (ebb_command(options, batch, precision, accumulate, budget), betty_command(options, batch, precision, accumulate))
    for _ in range(options.rounds):
        ours.append(run(commands[0]))
        theirs.append(run(commands[1]))
    ebb = {"step_ms": middle(ours, "step_ms"), "peak_bytes": middle(ours, "planned_peak_bytes"),
           "taken_bytes": middle(ours, "measured_peak_bytes"), "params": middle(ours, "params")}
    betty = {key: middle(theirs, key) for key in ("step_ms", "peak_bytes", "reserved_bytes", "params")}
    betty.update({key: theirs[-1][key] for key in ("torch", "device") if theirs[-1]})
    return {"name": name, "batch": batch, "precision": precision, "accumulate": accumulate,
            "command": shlex.join(["ebb", *commands[0][len(options.ebb):]]), "ebb": ebb, "betty": betty,
            "time_ratio": ratio(ebb["step_ms"], betty["step_ms"]), "memory_ratio": ratio(ebb["peak_bytes"], betty["peak_bytes"])}


def shown(value, places=1):
    return "-" if value is None else f"{value:.{places}f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="parts of the names of the rows to run (default: all)")
    parser.add_argument("--ebb", nargs="+", default=[str(HERE.parent / "build/release/ebb")], help="the program, or a command that starts it")
    parser.add_argument("--betty", metavar="DIR", help="folder that holds the package betty (default: as installed)")
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch (default: this one)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--classifier", default="resnet50", choices=["resnet50", "mlp"])
    parser.add_argument("--batch", type=int, help="items of an update, in place of each row's own")
    parser.add_argument("--steps", type=int, default=20, help="timed updates of a run")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each, taking turns; figures are medians")
    parser.add_argument("--budgets", action="store_true", help="give ebb the budget of each row, for ResNet-50 at the row's own batch")
    parser.add_argument("--extra", default="", help="further options of `ebb train`, as one word")
    parser.add_argument("--json", metavar="FILE", help="write the results here as well")
    parser.add_argument("--peer", action="store_true", help="train with Betty in this process, one row")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "fp16"], help="of --peer")
    parser.add_argument("--accumulate", type=int, default=1, help="of --peer")
    options = parser.parse_args()
    if options.peer:
        options.batch = options.batch or 100
        return train_with_betty(options)

    results = []
    print(f"{'':<32} {'ms':>8} {'Betty':>8} {'ratio':>6} {'aim':>5} {'MiB':>8} {'taken':>8} {'Betty':>8} {'ratio':>6} {'aim':>5}")
    for own_batch, precision, accumulate, budget, time_aim, memory_aim in ROWS:
        batch = options.batch or own_batch
        name = f"batch {batch}, {precision}" + (f", accumulate {accumulate}" if accumulate > 1 else "")
        if options.rows and not any(word in name for word in options.rows):
            continue
        if precision == "fp16" and not options.device.startswith("cuda"):
            print(f"{name:<32} left out: Betty has float16 on a GPU only", file=sys.stderr)
            continue
        row = compare(options, name, batch, precision, accumulate, budget)
        row["aims"] = {"time": time_aim, "memory": memory_aim}
        results.append(row)
        ebb, betty = row["ebb"], row["betty"]
        mib = {key: None if value is None else value / 2**20
               for key, value in (("ours", ebb["peak_bytes"]), ("taken", ebb["taken_bytes"]), ("theirs", betty["peak_bytes"]))}
        print(f"{name:<32} {shown(ebb['step_ms']):>8} {shown(betty['step_ms']):>8} {shown(row['time_ratio'], 3):>6} {time_aim:>5} "
              f"{shown(mib['ours'], 0):>8} {shown(mib['taken'], 0):>8} {shown(mib['theirs'], 0):>8} {shown(row['memory_ratio'], 3):>6} "
              f"{memory_aim:>5}", flush=True)
    document = json.dumps({"rows": results, "classifier": options.classifier, "device": options.device, "rounds": options.rounds})
    if options.json:
        pathlib.Path(options.json).write_text(document + "\n")
    print(document)
    return None


if __name__ == "__main__":
    main()
