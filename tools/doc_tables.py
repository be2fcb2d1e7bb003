"""The tables of the documentation, made from the results under docs/results: one function each, by the name that a page asks for."""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
CATEGORIES = ("weights", "gradients", "optimizer", "activations", "inputs", "workspace")


def results(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def study(name):
    return results(f"ablation-{name}")


def workload(settings):
    """Its name, and what it trains where that is a choice of its own."""
    return settings["workload"] + (f" of {settings['classifier']}" if "classifier" in settings else "")


def short(value):
    """About three significant digits, as ebb's own tables have them."""
    size = abs(value)
    places = 0 if size == 0 or size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:.{places}f}"


def mib(count):
    return short(count / 2**20)


def title(row):
    return row["name"].replace("+", " + ")


def chosen(name, rows):
    data = study(name)
    wanted = [r.strip() for r in rows.split(",")] if rows else [r["name"] for r in data["rows"]]
    by_name = {r["name"]: r for r in data["rows"]}
    missing = [r for r in wanted if r not in by_name]
    if missing:
        raise SystemExit(f"ablation-{name}.json has no row {', '.join(missing)}")
    if "baseline" not in wanted:
        wanted.insert(0, "baseline")
    return [by_name[r] for r in wanted]


def table(headings, lines):
    rule = "|".join("---" if k == 0 else "---:" for k in range(len(headings)))
    return "\n".join([f"| {' | '.join(headings)} |", f"|{rule}|"] + [f"| {' | '.join(cells)} |" for cells in lines])


def ablation(name, rows):
    lines = []
    for row in chosen(name, rows):
        if "step_ms" not in row:
            lines.append([title(row), row["error"], "", "", "", "", ""])
            continue
        ms = row["step_ms"]
        spread = f" ±{50 * (ms['high'] - ms['low']) / ms['median']:.0f}%" if len(ms["runs"]) > 1 else ""
        same = " =" if row.get("same_losses_as_baseline") and row["name"] != "baseline" else ""
        lines.append([title(row), mib(row["planned_peak_bytes"]), mib(row["measured_peak_bytes"]),
                      f"{row['memory_ratio']:.2f}", short(ms["median"]) + spread, f"{row['time_ratio']:.2f}",
                      f"{row['loss']:.4f}{same}"])
    return table(["row", "planned MiB", "measured MiB", "memory", "ms a step", "time", "loss"], lines)


def categories(name, rows):
    done = [row for row in chosen(name, rows) if "step_ms" in row]
    used = [c for c in CATEGORIES if any(row["planned_by_category"][c] for row in done)]
    return table(["MiB at the peak", *used], [[title(row), *(mib(row["planned_by_category"][c]) for c in used)] for row in done])


def source(name, _):
    data = study(name)
    facts, settings = data["facts"], data["settings"]
    return (f"{workload(settings)}, {settings['parameters']:,} parameters, batch {settings['batch']}, {settings['steps']} steps "
            f"({settings['samples']} samples); {facts['device']}; {facts['date']}; ebb {facts['version']}:\n\n    {facts['command']}\n")


CPU_STEPS = {"gpt2": "GPT-2 of 4 blocks, width 256, 8 × 256 tokens, vocabulary 5000, AdamW",
             "llama": "Llama of 4 blocks, width 256, 8 × 256 tokens, vocabulary 5000, AdamW",
             "resnet": "ResNet-32, batch 64, SGD with momentum", "bert": "BERT-base, 8 × 128 tokens, AdamW"}


# In a budget, and compiled: where that was measured.
def cpu_columns(rows, name, key, text):
    return [(name, lambda row: text(row[key]) if key in row else "not kept")] if any(key in row for row in rows) else []


def cpu_table(rows, columns):
    return table(["step", *(name for name, _ in columns)], [[CPU_STEPS[row["case"]], *(text(row) for _, text in columns)] for row in rows])


def cpu_steps(_, __):
    rows = results("steps-cpu")["results"]
    ratio = "{:.2f}".format
    return cpu_table(rows, [*cpu_columns(rows, "time, ebb ÷ PyTorch", "time_ratio", ratio), *cpu_columns(rows, "memory, ebb ÷ PyTorch", "memory_ratio", ratio),
                            *cpu_columns(rows, "in a budget: time", "lean_time_ratio", ratio), *cpu_columns(rows, "memory", "lean_memory_ratio", ratio)])


def cpu_steps_whole(_, __):
    rows = results("steps-cpu")["results"]
    ratio = "{:.2f}".format
    return cpu_table(rows, [*cpu_columns(rows, "ebb ms", "ebb_ms", short), *cpu_columns(rows, "planned MiB", "ebb_planned_bytes", mib),
                            *cpu_columns(rows, "process MiB", "ebb_process_bytes", mib), *cpu_columns(rows, "PyTorch ms", "torch_ms", short),
                            *cpu_columns(rows, "compiled ms", "compiled_ms", short), *cpu_columns(rows, "PyTorch MiB", "torch_above_idle_bytes", mib),
                            *cpu_columns(rows, "time", "time_ratio", ratio), *cpu_columns(rows, "memory", "memory_ratio", ratio),
                            *cpu_columns(rows, "lean time", "lean_time_ratio", ratio), *cpu_columns(rows, "lean memory", "lean_memory_ratio", ratio)])


GPU_STEPS = {
    "gpt2": "GPT-2 124M, 16 × 1024", "gpt2-350m": "GPT-2 350M, 8 × 1024", "gpt2-xl": "GPT-2 XL, 4 × 1024",
    "llama": "Llama 853M (heads of 128), 4 × 2048", "llama-64": "Llama 374M (heads of 64), 8 × 1024",
    "resnet50": "ResNet-50 (CIFAR form), batch 256", "bert": "BERT-base, 32 × 512",
}


def beside(name, ours_ms, theirs_ms, planned, taken, theirs):
    """Times in ms, bytes in MiB, then both ratios."""
    return [name, short(ours_ms), short(theirs_ms), f"{ours_ms / theirs_ms:.2f}", short(planned), short(taken), short(theirs),
            f"{planned / theirs:.2f}"]


def gpu_steps(_, __):
    lines = []
    for row in results("steps-h200"):
        model, _, rest = row["name"].partition(" ")
        how = " and ".join("compile" if case.endswith("compile") else "eager" for case in row["peer"].split())
        ebb, torch = row["ebb"], row["torch"]
        lines.append(beside(f"{GPU_STEPS[model]}, {rest}, against {how}", ebb["step_ms"], torch["step_ms"],
                            ebb["planned_peak_bytes"] / 2**20, ebb["measured_peak_bytes"] / 2**20, torch["peak_bytes"] / 2**20))
    return table(["step", "ebb ms", "PyTorch ms", "time", "planned MiB", "taken MiB", "PyTorch MiB", "memory"], lines)


def betty_steps(_, __):
    rows = results("betty-h200")["rows"]
    lines = [beside(f"{row['name']}, budget {row['budget']}", row["ebb_ms"], row["betty_ms"], row["ebb_mib"], row["taken_mib"],
                    row["betty_mib"]) for row in rows]
    return table(["ResNet-50, darts", "ebb ms", "Betty ms", "time", "planned MiB", "taken MiB", "Betty MiB", "memory"], lines)


def percent(part):
    return f"{100 * part:+.1f} %"


def needle(name, layers):
    """Every segment rule of a model with this many layers, compared with the automatic plan at the same peak."""
    rows = {row["recompute"]: row for row in results(f"needle-{name}")["rows"] if row["layers"] == int(layers)}
    lines = []
    for rule, row in rows.items():
        if rule != "none" and not rule.startswith("auto"):
            auto = rows[f"auto at {rule}'s peak"]
            lines.append([f"`{rule}`", f"{100 * row['saved']:.0f} %", percent(row["extra_time"]), percent(row["predicted_extra_time"]),
                          percent(auto["extra_time"]), percent(auto["predicted_extra_time"])])
    return table(["", "saved", "time", "predicted", "auto at the same peak", "predicted"], lines)


def plans(name, _):
    """Several plans of one step, for comparison."""
    made = results(f"plans-{name}")["plans"]
    whole = lambda count: f"{count / 2**20:,.0f} MiB"
    category = lambda *names: [whole(sum(plan["peak_by_category"][n] for n in names)) for plan in made.values()]
    return table(["", *made], [
        ["peak", *(whole(plan["planned_peak_bytes"]) for plan in made.values())],
        ["weights and state", *category("weights", "optimizer")],
        ["gradients at the peak", *category("gradients")],
        ["activations at the peak", *category("activations")],
        ["predicted time", *(f"{plan['overhead']:.2f}" for plan in made.values())],
        ["computed again", *(str(plan["recomputed_nodes"]) for plan in made.values())]])


def bytes_per_parameter(_, __):
    return table(["precision", "optimizer", "weights", "gradients", "state", "together", "held by the system"],
                 [[f"{row['precision']} {row['options']}".strip(), row["optimizer"],
                   *(f"{row[k]:.2f}" for k in ("weights", "gradients", "state", "together", "held"))] for row in results("bytes-per-parameter")])


def precision_products(_, __):
    """Products of halves ÷ float32's, with what the processor has and with AVX2 alone."""
    rows = results("precision-cpu")["products"]
    ratio = lambda row, key: f"{row[key]:.2f} ×"
    return table(["rows × inner × columns", "bf16", "fp16", "bf16, older", "fp16, older"],
                 [[row["size"], *(ratio(row, key) for key in ("bf16", "fp16", "bf16_older", "fp16_older"))] for row in rows])


def precision_steps(_, __):
    lines = []
    for row in results("precision-cpu")["steps"]:
        base = row["fp32"]
        lines.append([f"`{row['workload']}`" + (", older" if row["older"] else ""), short(base["ms"]),
                      *(f"{row[p]['ms'] / base['ms']:.2f} ×" for p in ("bf16", "fp16")),
                      *(mib(row[p]["planned_peak_bytes"]) for p in ("fp32", "bf16", "fp16"))])
    return table(["workload", "fp32 ms", "bf16", "fp16", "planned MiB, fp32", "bf16", "fp16"], lines)


BYTES_AN_ELEMENT = {"adamw": 28, "adamw_bf16": 20, "adamw_bf16_stochastic": 20, "adamw8bit": 16.1, "adamw4bit": 14.1, "lion": 20,
                    "adafactor": 24, "lomo": 12, "sgd": 12}  # read and written, float32 weights and gradients among them


def optimizer_times(_, __):
    cases = {case["case"].partition("/")[0]: case for case in results("optimizers-cpu")["cases"]}
    return table(["optimizer", "bytes an element", "ms", "PyTorch ms"],
                 [[f"`{name}`", str(count), short(cases[name]["ebb_ms"]), short(cases[name]["torch_ms"]) if "torch_ms" in cases[name] else ""]
                  for name, count in BYTES_AN_ELEMENT.items()])


def optimizer_losses(_, __):
    return table(["optimizer", "loss ÷ Adam's"], [[name, f"{ratio:.4f}"] for name, ratio in results("optimizer-losses")["ratios"].items()])


def profile(name, _):
    return table(["", "kernels", "ms"], [[row["part"], str(row["calls"]), short(row["ms"])] for row in results(f"profile-{name}")["rows"]])


def value(name, path):
    """One number of a file, found by keys and, in lists, by the `name` of an entry or its place."""
    found = results(name)
    for key in path:
        if isinstance(found, list):
            found = found[int(key)] if key.isdigit() else next(row for row in found if row["name"] == key)
        else:
            found = found[key]
    if isinstance(found, dict) and "median" in found:
        found = found["median"]
    if isinstance(found, str):
        return found
    last = path[-1]
    if last.endswith("_bytes"):
        return f"{found / 2**20:,.0f} MiB"
    return f"{short(found)} ms" if last.endswith("_ms") else f"{found:.2f}"


BLOCKS = {
    "ablation": ablation, "ablation-categories": categories, "ablation-source": source,
    "steps": cpu_steps, "steps-whole": cpu_steps_whole, "steps-gpu": gpu_steps, "steps-betty": betty_steps,
    "needle": needle, "plans": plans, "profile": profile, "bytes-per-parameter": bytes_per_parameter,
    "precision-products": precision_products, "precision-steps": precision_steps,
    "optimizer-times": optimizer_times, "optimizer-losses": optimizer_losses,
}
