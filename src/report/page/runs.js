// Puts the page of one run or several together.
const charts = [];
const hiddenRuns = new Set();
const several = runs.length > 1;

function section(id, heading, text, ...children) {
  return html("section", { id, "aria-labelledby": `${id}-title` },
    html("h2", { id: `${id}-title` }, heading), text ? html("p", { class: "lead" }, text) : null, children);
}

function segmented(label, choices, chosen, onChange) {
  const buttons = choices.map(([key, text]) => html("button", {
    type: "button", "aria-pressed": String(key === chosen),
    onclick: () => {
      buttons.forEach((button, k) => button.setAttribute("aria-pressed", choices[k][0] === key));
      onChange(key);
    },
  }, text));
  return html("div", { class: "segmented", role: "group", "aria-label": label }, buttons);
}

function figuresOf(run) {
  const peak = run.planned_peak_bytes === undefined ? [] : [[bytesLike(run.planned_peak_bytes)(run.planned_peak_bytes), "peak, as planned"]];
  return [...run.figures, ...peak];
}

function header() {
  const [run] = runs;
  const facets = several ? [`${runs.length} runs`] : [run.over ? null : "not over", run.date, run.version && `ebb ${run.version}`].filter(Boolean);
  document.getElementById("top").append(
    html("div", { class: "masthead" }, html("span", { class: "brand" }, "ebb"), themeButton()),
    html("h1", {}, data.title.replace(/^ebb: /, "")), html("p", { class: "facets" }, facets.join("  ·  ")),
    several ? "" : html("div", { class: "figures" }, figuresOf(run).map(([value, label]) =>
      html("div", { class: "figure" }, html("div", { class: "figure-value" }, value), html("div", { class: "figure-label" }, label)))));
}

// A button for each run that shows and hides its curves, and the two axes.
function controls() {
  const toggle = (run, k) => html("button", {
    type: "button", class: `quiet run-toggle ${colourOf(k)}`, "aria-pressed": "true", title: "Show or hide this run",
    onclick: (event) => {
      const hide = !hiddenRuns.has(k);
      if (hide) hiddenRuns.add(k);
      else hiddenRuns.delete(k);
      event.currentTarget.setAttribute("aria-pressed", String(!hide));
      for (const chart of charts) chart.set({ hidden: hiddenRuns });
    },
  }, html("span", { class: "swatch line run-swatch" }), run.name);
  const timed = runs.every((run) => Object.values(run.curves).some((curve) => curve.seconds));
  return html("div", { class: "toolbar run-controls" }, several ? runs.map(toggle) : null,
    timed ? html("span", { class: "named" }, "Over", segmented("Axis", [["steps", "steps"], ["time", "time"]], "steps", (axis) => charts.forEach((chart) => chart.set({ axis })))) : null,
    html("span", { class: "named" }, "Losses", segmented("Losses", [["linear", "linear"], ["log", "logarithmic"]], "linear",
      (scale) => charts.filter((chart) => chart.ofLosses).forEach((chart) => chart.set({ log: scale === "log" })))));
}

// The curves of a tag in all runs; `suffix` is told where a run has two in one chart.
function curvesOf(tag, { test = false, suffix = "" } = {}) {
  return runs.flatMap((run, k) => (run.curves[tag] ? [{ ...run.curves[tag], run: k, test, name: `${several ? run.name : ""}${suffix}` || tag }] : []));
}

function chartSection(id, heading, text, curves, options = {}) {
  if (!curves.length) return null;
  const host = html("div", { class: "chart" });
  const node = section(id, heading, text, host);
  const chart = new RunChart(host, { label: heading, curves, ...options });
  chart.ofLosses = Boolean(options.losses);
  charts.push(chart);
  return node;
}

const plain = (value) => String(Number(value.toPrecision(6)));
const short = (value) => String(Number(value.toPrecision(4)));
const milliseconds = (value, tick) => (tick ? tickMs(value) : formatMs(value));
const percent = (value) => `${Number((100 * value).toPrecision(4))}%`;

function classCurves() {
  return runs.flatMap((run, k) => (run.accuracy_by_class ? [{
    run: k, test: false, name: several ? run.name : "accuracy", each: 1, dots: true,
    steps: run.accuracy_by_class.map((_, c) => c), values: run.accuracy_by_class }] : []));
}

function memorySection() {
  const told = runs.filter((run) => run.planned_peak_bytes !== undefined);
  if (!told.length) return null;
  const most = Math.max(...told.map((run) => Math.max(run.planned_peak_bytes, run.measured_peak_bytes ?? 0, run.budget_bytes ?? 0)));
  const size = bytesLike(most), share = (bytes) => `${round((100 * bytes) / most)}%`;
  const used = categoryOrder.filter((name) => told.some((run) => run.peak_by_category?.[name] > 0));
  const bar = (run) => {
    let at = 0;
    const parts = run.peak_by_category ? categoryOrder.filter((name) => run.peak_by_category[name] > 0).map((name) => {
      const bytes = run.peak_by_category[name];
      const part = svg("rect", { x: share(at), y: 3, width: share(bytes), height: 14, fill: categoryColour(name) }, svg("title", {}, `${categoryLabels[name]}: ${formatBytes(bytes)}`));
      at += bytes;
      return part;
    }) : [svg("rect", { class: "time", x: 0, y: 3, width: share(run.planned_peak_bytes), height: 14 })];
    const mark = (bytes, kind, name) => bytes === undefined ? null : svg("line", { class: kind, x1: share(bytes), x2: share(bytes), y1: 0, y2: 20 }, svg("title", {}, `${name}: ${formatBytes(bytes)}`));
    return svg("svg", { class: "run-memory", width: "100%", height: 20, role: "img", "aria-label": `planned ${formatBytes(run.planned_peak_bytes)}` },
      parts, mark(run.measured_peak_bytes, "measured-line", "measured"), mark(run.budget_bytes, "budget", "budget"));
  };
  const cell = (bytes) => (bytes === undefined ? "–" : size(bytes));
  const budgets = told.some((run) => run.budget_bytes !== undefined);
  return section("memory", "Memory at the peak", "As planned before the first step, by category, and as measured after the last.",
    html("div", { class: "toolbar" }, used.length ? legend(used) : null,
      html("div", { class: "strip-key" }, html("span", {}, html("span", { class: "swatch tick-measured" }), "measured"),
        budgets ? html("span", {}, html("span", { class: "swatch line budget-swatch" }), "budget") : null)),
    scrolling("Memory at the peak", html("table", { class: "plain" },
      html("thead", {}, html("tr", {}, several ? html("th", { scope: "col" }, "Run") : null, html("th", { scope: "col" }, ""),
        ["Planned", "Measured", budgets ? "Budget" : null].filter(Boolean).map((text) => html("th", { scope: "col", class: "number" }, text)))),
      html("tbody", {}, told.map((run) => html("tr", {}, several ? html("th", { scope: "row" }, run.name) : null, html("td", { class: "bar" }, bar(run)),
        html("td", { class: "number" }, cell(run.planned_peak_bytes)), html("td", { class: "number" }, cell(run.measured_peak_bytes)),
        budgets ? html("td", { class: "number" }, cell(run.budget_bytes)) : null))))));
}

function ranksSection() {
  if (!data.ranks) return null;
  const size = bytesLike(Math.max(...data.ranks.map((rank) => rank.planned_peak_bytes ?? 0)));
  return section("ranks", "Ranks", "The rank that waits least is the one that the others wait for.",
    scrolling("Ranks", html("table", { class: "plain" },
      html("thead", {}, html("tr", {}, ["Rank", "Planned peak", "Measured peak", "Time of a step", "Of it in exchanges", "Sent a step"].map((text, k) =>
        html("th", { scope: "col", class: k ? "number" : "" }, text)))),
      html("tbody", {}, data.ranks.map((rank) => html("tr", {}, html("th", { scope: "row" }, String(rank.rank)),
        [size(rank.planned_peak_bytes ?? 0), size(rank.measured_peak_bytes ?? 0), formatMs(rank.step_ms ?? 0),
          rank.waited_ms === undefined ? "–" : formatMs(rank.waited_ms), formatBytes(rank.bytes_sent ?? 0)].map((text) => html("td", { class: "number" }, text))))))));
}

function tableSection() {
  return section("table", several ? "The runs side by side" : "The run", null,
    scrolling("Figures of the runs", html("table", { class: "plain run-table" },
      html("thead", {}, html("tr", {}, html("th", { scope: "col" }, ""), runs.map((run) => html("th", { scope: "col", class: "number" }, run.over ? run.name : `${run.name} (not over)`)))),
      html("tbody", {}, data.table.map(([name, cells]) => html("tr", {}, html("th", { scope: "row" }, name), cells.map((text) => html("td", { class: "number" }, text))))))));
}

function made() {
  const told = runs.filter((run) => run.command);
  if (!told.length) return;
  document.getElementById("made").append(section("machine", "How this was made", null,
    told.map((run) => [several ? html("p", { class: "note" }, run.name) : null, html("div", { class: "command" }, html("code", {}, run.command))])));
}

header();
const levels = [...new Set(runs.flatMap((run) => Object.keys(run.curves)))].filter((tag) => tag.endsWith("/loss")).sort();
const rankTags = [...new Set(runs.flatMap((run) => Object.keys(run.curves)))].filter((tag) => /^ranks\/\d+\/waited_ms$/.test(tag));
const tests = curvesOf("test_loss", { test: true, suffix: several ? ", test" : "test" });
// Losses of weighted items say nothing beside those of equal ones: of runs that weigh items, both are drawn alike.
const equal = "classifier/unweighted_loss";
const alike = !runs.some((run) => run.curves[equal]) ? [] : runs.flatMap((run, k) => {
  const curve = run.curves[equal] ?? run.curves.loss;
  return curve ? [{ ...curve, run: k, test: false, name: several ? run.name : "loss" }] : [];
});
document.getElementById("main").append(...[
  controls(),
  chartSection("loss", "Loss", tests.length ? "Of training as a line, of tests as dashes." : "Of training.",
    [...curvesOf("loss", { suffix: several ? "" : "training" }), ...tests], { losses: true, text: (value, tick) => (tick ? short(value) : plain(value)) }),
  chartSection("alike", "Loss with equal weights", "The mean over the items of a batch, also of runs that train with weights.", alike, { losses: true, text: (value, tick) => (tick ? short(value) : plain(value)) }),
  chartSection("accuracy", "Accuracy", "The share of right answers in tests.", curvesOf("test_accuracy", { suffix: several ? "" : "test" }), { text: percent }),
  chartSection("classes", "Accuracy by class", runs.every((run) => !run.accuracy_by_class || run.by_frequency)
    ? "After the last step, the class that is most frequent in training first." : "After the last step, in the order of the classes' names.", classCurves(), { along: "class", text: percent }),
  ...levels.map((tag, k) => chartSection(`level-${k}`, `Loss of the level ${tag.slice(0, -5)}`, null, curvesOf(tag), { losses: true, text: (value, tick) => (tick ? short(value) : plain(value)) })),
  chartSection("rate", "Learning rate", null, curvesOf("rate"), { text: short }),
  ...levels.map((tag, k) => chartSection(`rate-${k}`, `Learning rate of the level ${tag.slice(0, -5)}`, null, curvesOf(tag.replace(/loss$/, "rate")), { text: short })),
  chartSection("norm", "Norm of the gradients", "Before clipping.", curvesOf("gradient_norm"), { text: short }),
  chartSection("scale", "Loss scale", "By which fp16 losses are multiplied.", curvesOf("loss_scale"), { text: short }),
  chartSection("time", "Time of a step", "Without waiting for data. The few steps that took far longer than all others, as the first ones do, are drawn at the upper edge.", curvesOf("step_ms"), { text: milliseconds, cut: true }),
  several ? null : chartSection("exchanges", "Time in exchanges, by rank", "The lowest curve is that of the rank that the others wait for.",
    rankTags.flatMap((tag) => curvesOf(tag, { suffix: `rank ${tag.split("/")[1]}` }).map((curve) => ({ ...curve, colour: Number(tag.split("/")[1]) }))), { text: milliseconds }),
  memorySection(), ranksSection(), tableSection()].filter(Boolean));
made();
