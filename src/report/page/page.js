// Puts the page together and keeps its parts on the same row.
const state = { row: null, compared: "" };
const parts = {};

function section(id, heading, text, ...children) {
  return html("section", { id, "aria-labelledby": `${id}-title` },
    html("h2", { id: `${id}-title` }, heading), text ? html("p", { class: "lead" }, text) : null, children);
}

function figure(value, label) {
  return html("div", { class: "figure" }, html("div", { class: "figure-value" }, value), html("div", { class: "figure-label" }, label));
}

// The few numbers a reader should leave with.
function figures() {
  const all = rows.find((row) => row.name === "all");
  const result = [];
  if (baseline && all) {
    const size = bytesLike(Math.max(baseline.planned_peak_bytes, all.planned_peak_bytes));
    result.push(figure(`${size(baseline.planned_peak_bytes)} → ${size(all.planned_peak_bytes)}`, "peak, from the baseline to everything together"));
    result.push(figure(formatRatio(all.memory_ratio), roughTimes ? "of the baseline's memory; the steps are too few to tell of time"
      : `of the baseline's memory, at ${formatRatio(all.time_ratio)} its time`));
  } else if (data.kind === "frontier") {
    const [least, most] = [study.curves[0].points[0], study.curves[0].points.at(-1)], size = bytesLike(most.planned_peak_bytes);
    result.push(figure(size(least.planned_peak_bytes), `the smallest budget that can be kept, at ${formatRatio(least.overhead)} the time of keeping all`));
    result.push(figure(size(most.planned_peak_bytes), "keeping all"));
  } else if (rows.length === 1) {
    result.push(figure(formatBytes(rows[0].planned_peak_bytes), "peak, as planned before the step ran"));
    const [row] = rows;
    if (row.step_ms) result.push(timedSteps(row) > 2 ? figure(formatMs(row.step_ms.median), `a step, the median of ${timedSteps(row)}; ${formatMs(row.predicted_step_ms)} predicted`)
      : figure(formatMs(row.predicted_step_ms), "a step, as predicted; too few were measured to tell"));
  }
  const measured = rows.filter((row) => row.measured_peak_bytes !== undefined);
  if (measured.length) {
    const worst = Math.max(...measured.map((row) => Math.abs(row.measured_peak_bytes - row.planned_peak_bytes)));
    const exact = measured.filter((row) => row.measured_peak_bytes === row.planned_peak_bytes).length;
    result.push(figure(exact === measured.length ? "exact" : `within ${formatBytes(worst)}`,
      `measured against planned memory${measured.length > 1 ? `, in ${exact} of ${measured.length} rows to the byte` : ""}`));
  }
  return result;
}

const headings = { ablation: "What each technique saves and costs", profile: "Where the memory and the time go", frontier: "What less memory costs in time" };

function header() {
  const { settings, facts } = study;
  const workload = settings.classifier ? `${settings.workload} of ${settings.classifier}` : settings.workload;
  const facets = [workload, `${formatCount(settings.parameters)} parameters`, `batch ${settings.batch}`,
    settings.steps ? `${settings.steps} steps` : null, facts.device, facts.date].filter(Boolean);
  document.getElementById("top").append(
    html("div", { class: "masthead" }, html("span", { class: "brand" }, "ebb"), themeButton()),
    html("h1", {}, headings[data.kind]),
    html("p", { class: "facets" }, facets.join("  ·  ")),
    html("div", { class: "figures" }, figures()));
}

function pick(name, { scroll = false } = {}) {
  const own = Boolean(data.timelines[name]);
  if (!own) { // a row of the other study: compared with the chosen one
    if (rowNamed(name)) compareWith(name, { scroll });
    return;
  }
  state.row = name;
  const row = rowNamed(name);
  parts.bars?.select(name);
  parts.frontier?.select(name);
  parts.timeline.show(name);
  parts.search.show(stackOf(name));
  if (parts.select) parts.select.value = name;
  for (const card of document.querySelectorAll(".card")) card.setAttribute("aria-pressed", card.dataset.row === name);
  for (const node of document.querySelectorAll(".of-row")) node.textContent = rows.length > 1 ? title(row) : "this step";
  parts.decisions.replaceChildren(decisionsTable(data.timelines[name]));
  parts.modules.replaceChildren(modulesTable(data.timelines[name]));
  parts.tensors.replaceChildren(tensorsTable(stackOf(name)));
  parts.time.replaceChildren(timeTable(data.timelines[name]));
  if (row?.measured_staying_by_category) parts.promise.replaceChildren(promiseTable(row));
  compareWith(state.compared);
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  if (scroll) document.getElementById("timeline").scrollIntoView({ behavior: scrolls() });
}

// Lays another row, of this study or the other one, over the chosen one; "" takes it away.
function compareWith(name, { scroll = false } = {}) {
  const compared = name && name !== state.row ? rowNamed(name) : null;
  state.compared = compared ? name : "";
  if (parts.compare) parts.compare.value = state.compared;
  parts.timeline.compare(compared && hasTimeline(name) ? name : null);
  parts.losses?.show(state.row, state.compared);
  parts.compared.replaceChildren(...(compared ? [html("h3", {}, "Compared"), comparedTable(rowNamed(state.row), compared, [titleOf(state.row), titleOf(name)])] : []));
  parts.legend.replaceChildren(timelineLegend());
  if (scroll) document.getElementById("timeline").scrollIntoView({ behavior: scrolls() });
}

function timelineLegend() {
  const list = legend(stackOf(state.row).used), budget = rowNamed(state.row).budget_bytes;
  if (budget) list.append(html("li", {}, html("span", { class: "swatch line budget-swatch" }), `budget ${bytesLike(parts.timeline.most ?? budget)(budget)}${parts.timeline.showsBudget === false && parts.timeline.view === "stack" ? ", above the chart" : ""}`));
  if (state.compared && hasTimeline(state.compared)) list.append(html("li", {}, html("span", { class: "swatch line over-swatch" }), titleOf(state.compared)));
  return list;
}

function fillCompare() {
  if (!parts.compare) return;
  const option = (name) => html("option", { value: name }, titleOf(name));
  parts.compare.replaceChildren(html("option", { value: "" }, "nothing"), ...rows.map((row) => option(row.name)),
    ...(other ? [html("optgroup", { label: "The other study" }, other.rows.map((row) => option(otherPrefix + row.name)))] : []));
  parts.compare.value = state.compared;
  parts.compare.parentElement.hidden = rows.length < 2 && !other;
}

function otherChanged() {
  fillCompare();
  compareWith(rowNamed(state.compared) ? state.compared : other ? otherPrefix + other.rows[0].name : "");
  parts.frontier?.redraw();
  parts.marks?.replaceChildren(markLegend());
}

function step(direction) {
  const names = rows.map((row) => row.name);
  pick(names[(names.indexOf(state.row) + direction + names.length) % names.length]);
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

function timelineSection() {
  const host = html("div", { class: "chart" });
  parts.legend = html("div");
  const chooser = rows.length > 1 ? html("label", { class: "chooser" }, data.kind === "frontier" ? "Plan " : "Row ",
    (parts.select = html("select", { id: "row", onchange: (event) => pick(event.target.value) },
      rows.map((row) => html("option", { value: row.name }, title(row)))))) : null;
  parts.compared = html("div", { id: "compared" });
  const compare = html("label", { class: "chooser" }, "Compare with ", (parts.compare = html("select", { id: "compare", onchange: (event) => compareWith(event.target.value) })));
  parts.search = new Search({ onFind: (buffer) => {
    parts.timeline.find(buffer);
    if (buffer !== undefined) host.scrollIntoView({ block: "nearest", behavior: scrolls() });
  } });
  const zoom = html("div", { class: "segmented", role: "group", "aria-label": "Zoom" },
    html("button", { type: "button", title: "Zoom in", onclick: () => parts.timeline.zoom(0.5) }, "+"),
    html("button", { type: "button", title: "Zoom out", onclick: () => parts.timeline.zoom(2) }, "−"),
    html("button", { type: "button", title: "Show the whole step", onclick: () => parts.timeline.reset() }, "whole step"));
  const node = section("timeline", "Memory over the step",
    "Every tensor that is alive while the step's instructions run, and below, on the same axis, its kernels. Point at the chart or tap it to see which tensor or kernel it is; drag across to zoom in.",
    html("div", { class: "toolbar" }, chooser, compare,
      segmented("View", [["stack", "by category"], ["arena", "places in the arena"]], "stack", (view) => parts.timeline.setView(view)),
      segmented("Axis", [["instructions", "instructions"], ["time", "time"]], "instructions", (axis) => parts.timeline.setAxis(axis)), zoom),
    parts.search.node, parts.legend, host,
    html("div", { class: "strip-key" }, html("span", {}, "Kernels:"),
      ["forward", "backward", "update", "computed again"].map((phase, k) => html("span", {}, html("span", { class: `swatch phase-${k}` }), phase)),
      rows.some((row) => data.timelines[row.name]?.tiers) ? [["store", "copied to another tier"], ["fetch", "copied back"]].map(([lane, text]) =>
        html("span", {}, html("span", { class: `swatch copy-${lane}` }), text)) : null),
    html("p", { id: "timeline-keys", class: "keys" }, "Keys: ", html("kbd", {}, "←"), html("kbd", {}, "→"), " instruction, ", html("kbd", {}, "↑"), html("kbd", {}, "↓"),
      " tensor, ", html("kbd", {}, "P"), " peak, ", html("kbd", {}, "K"), " kernel, ", html("kbd", {}, "+"), html("kbd", {}, "−"), html("kbd", {}, "0"), " zoom",
      rows.length > 1 ? [", ", html("kbd", {}, "["), html("kbd", {}, "]"), " row"] : null));
  node.append(parts.compared, otherControl(otherChanged));
  parts.timeline = new TimelineChart(host, { onRow: step });
  fillCompare();
  if (rows.length > 1) {
    const most = Math.max(...rows.map((row) => stackOf(row.name).most)), size = bytesLike(most);
    node.append(html("h3", {}, "All rows on one scale"), html("div", { class: "cards" }, rows.map((row) =>
      html("button", { type: "button", class: "card", "data-row": row.name, "aria-pressed": "false", onclick: () => pick(row.name, { scroll: true }) },
        html("span", { class: "card-title" }, title(row)), thumbnail(row.name, most),
        html("span", { class: "card-value" }, size(row.planned_peak_bytes))))));
  }
  return node;
}

function barsSection() {
  const host = html("div");
  const node = section("bars", "Memory and time of every row",
    `Bars are the planned peak by category; runs took turns. Choose a row to see its memory below.${roughTimes
      ? ` Few steps of each row were timed (${timedSteps(rows.find((row) => row.step_ms))}): take its times as rough.` : ""}`, host);
  parts.bars = new Bars(host, { onPick: (name) => pick(name) });
  return node;
}

function curveTable() {
  return study.curves.map(({ points }) => {
    const size = bytesLike(Math.max(...points.map((p) => p.budget_bytes))), time = msLike(Math.max(...points.map((p) => p.predicted_step_ms)));
    const tiers = [...new Set(points.flatMap((p) => Object.keys(p.tiers ?? {})))];
    return table(
      [["Budget", "number"], ["Planned peak", "number"], ["Predicted step", "number"], ["Of keeping all", "number"], ["Run again", "number"],
        ...tiers.flatMap((tier) => [[`On ${tier}`, "number"], ["Moved a step", "number"]])],
      points.map((p) => [size(p.budget_bytes), size(p.planned_peak_bytes), time(p.predicted_step_ms), formatRatio(p.overhead), String(p.recomputed_nodes),
        ...tiers.flatMap((tier) => [size(p.tiers[tier].planned_bytes), size(p.tiers[tier].fetched_bytes + p.tiers[tier].stored_bytes)])]),
      { empty: "", label: "Plans of the curve" });
  });
}

function frontierSection() {
  const host = html("div", { class: "chart" });
  const text = data.kind === "frontier"
    ? "Each dot is a plan that the automatic strategy made for one budget: the least predicted time that keeps it."
    : "Down and to the left is better. Lines are what automatic recomputation reaches at other budgets, for ebb's defaults and for everything together: its predicted times, scaled to what the row itself took.";
  parts.marks = html("div", {}, markLegend());
  const node = section("frontier", "Peak against time", text, parts.marks, host, data.kind === "frontier" ? curveTable() : null);
  parts.frontier = new FrontierChart(host, { onPick: (name) => pick(name, { scroll: true }) });
  return node;
}

function lossesSection() {
  const host = html("div", { class: "chart" });
  const node = section("losses", "Loss over the steps", "The chosen row and the one it is compared with, before all others. Rows whose losses are the same to the bit lie on one line.", host);
  parts.losses = new LossChart(host);
  return node;
}

function detailsSection() {
  for (const name of ["decisions", "modules", "tensors", "time", "promise"]) parts[name] = html("div", { id: name });
  const measured = rows[0].measured_staying_by_category;
  return section("details", "What the plan decided", html("span", {}, "For ", html("strong", { class: "of-row" }), "."),
    html("h3", {}, "Computed again instead of kept, by module"), parts.decisions,
    measured ? [html("h3", {}, "Planned and measured"), parts.promise] : null,
    html("h3", {}, "Modules at the peak"), parts.modules,
    html("h3", {}, "Tensors at the peak"), parts.tensors,
    html("h3", {}, "Time by op"), parts.time);
}

function made() {
  const { facts, settings } = study;
  const pairs = Object.entries({ Device: facts.device, Threads: facts.threads, Cores: facts.cores, Memory: formatBytes(facts.memory_bytes), ebb: facts.version, Date: facts.date });
  const sizes = Object.entries(settings).map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "number" ? formatCount(value) : value}`);
  document.getElementById("made").append(section("machine", "How this was made", null,
    html("div", { class: "command" }, html("code", {}, facts.command)),
    html("dl", {}, pairs.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, String(value))))),
    html("p", { class: "note" }, sizes.join(", "), ".")));
}

header();
const main = document.getElementById("main");
if (data.kind === "ablation" && rows.length > 1) main.append(barsSection());
if (data.kind === "frontier") main.append(frontierSection());
if (rows.length) main.append(timelineSection());
if (data.kind === "ablation") main.append(frontierSection());
if (rows.some((row) => row.losses?.length > 1)) main.append(lossesSection());
if (rows.length) {
  main.append(detailsSection());
  const wanted = decodeURIComponent(location.hash.slice(1));
  pick(data.timelines[wanted] ? wanted : (baseline ?? rows[0]).name);
}
made();
