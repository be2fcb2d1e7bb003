// Puts the page together and keeps its parts on the same row.
const state = { row: null };
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
    result.push(figure(`${formatBytes(baseline.planned_peak_bytes)} → ${formatBytes(all.planned_peak_bytes)}`, "peak, from the baseline to everything together"));
    result.push(figure(formatRatio(all.memory_ratio), `of the baseline's memory, at ${formatRatio(all.time_ratio)} its time`));
  } else if (data.kind === "frontier") {
    const [least, most] = [study.curves[0].points[0], study.curves[0].points.at(-1)];
    result.push(figure(formatBytes(least.planned_peak_bytes), `the smallest budget that can be kept, at ${formatRatio(least.overhead)} the time of keeping all`));
    result.push(figure(formatBytes(most.planned_peak_bytes), "keeping all"));
  } else if (rows.length === 1) {
    result.push(figure(formatBytes(rows[0].planned_peak_bytes), "peak, as planned before the step ran"));
    if (rows[0].step_ms) result.push(figure(formatMs(rows[0].step_ms.median), "a step"));
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
  if (!data.timelines[name]) return;
  state.row = name;
  const row = rows.find((candidate) => candidate.name === name);
  parts.bars?.select(name);
  parts.frontier?.select(name);
  parts.timeline.show(name, { keepZoom: false });
  parts.legend.replaceChildren(legend(stackOf(name).used));
  if (parts.select) parts.select.value = name;
  for (const card of document.querySelectorAll(".card")) card.setAttribute("aria-pressed", card.dataset.row === name);
  for (const node of document.querySelectorAll(".of-row")) node.textContent = rows.length > 1 ? title(row) : "this step";
  parts.decisions.replaceChildren(decisionsTable(data.timelines[name]));
  parts.modules.replaceChildren(modulesTable(data.timelines[name]));
  parts.tensors.replaceChildren(tensorsTable(stackOf(name)));
  parts.time.replaceChildren(timeTable(data.timelines[name]));
  if (row?.measured_staying_by_category) parts.promise.replaceChildren(promiseTable(row));
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  if (scroll) document.getElementById("timeline").scrollIntoView({ behavior: "smooth" });
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
  const zoom = html("div", { class: "segmented", role: "group", "aria-label": "Zoom" },
    html("button", { type: "button", title: "Zoom in", onclick: () => parts.timeline.zoom(0.5) }, "+"),
    html("button", { type: "button", title: "Zoom out", onclick: () => parts.timeline.zoom(2) }, "−"),
    html("button", { type: "button", title: "Show the whole step", onclick: () => parts.timeline.reset() }, "whole step"));
  const node = section("timeline", "Memory over the step",
    "Every tensor that is alive while the step's instructions run one after the other. Point at the chart to see which tensor it is and when it lives; drag across to zoom in.",
    html("div", { class: "toolbar" }, chooser,
      segmented("View", [["stack", "by category"], ["arena", "places in the arena"]], "stack", (view) => parts.timeline.setView(view)),
      segmented("Axis", [["instructions", "instructions"], ["time", "time"]], "instructions", (axis) => parts.timeline.setAxis(axis)), zoom),
    parts.legend, host,
    html("div", { class: "strip-key" }, html("span", {}, "Strip under the chart:"),
      ["forward", "backward", "update", "computed again"].map((phase, k) => html("span", {}, html("span", { class: `swatch phase-${k}` }), phase))),
    html("p", { id: "timeline-keys", class: "keys" }, "Keys: ", html("kbd", {}, "←"), html("kbd", {}, "→"), " instruction, ", html("kbd", {}, "↑"), html("kbd", {}, "↓"),
      " tensor, ", html("kbd", {}, "P"), " peak, ", html("kbd", {}, "+"), html("kbd", {}, "−"), html("kbd", {}, "0"), " zoom",
      rows.length > 1 ? [", ", html("kbd", {}, "["), html("kbd", {}, "]"), " row"] : null));
  parts.timeline = new TimelineChart(host, { onRow: step });
  if (rows.length > 1) {
    const most = Math.max(...rows.map((row) => stackOf(row.name).most));
    node.append(html("h3", {}, "All rows on one scale"), html("div", { class: "cards" }, rows.map((row) =>
      html("button", { type: "button", class: "card", "data-row": row.name, "aria-pressed": "false", onclick: () => pick(row.name, { scroll: true }) },
        html("span", { class: "card-title" }, title(row)), thumbnail(row.name, most),
        html("span", { class: "card-value" }, formatBytes(row.planned_peak_bytes))))));
  }
  return node;
}

function barsSection() {
  const host = html("div");
  const node = section("bars", "Memory and time of every row",
    "Bars are the planned peak by category; the dark tick is what the system held. Time is the median over runs that took turns, with the fastest and the slowest. Choose a row to see its memory below.", host);
  parts.bars = new Bars(host, { onPick: (name) => pick(name) });
  return node;
}

function curveTable() {
  return study.curves.map((curve) => table(
    [["Budget", "number"], ["Planned peak", "number"], ["Predicted step", "number"], ["Of keeping all", "number"], ["Run again", "number"]],
    curve.points.map((p) => [formatBytes(p.budget_bytes), formatBytes(p.planned_peak_bytes), formatMs(p.predicted_step_ms), formatRatio(p.overhead), String(p.recomputed_nodes)]),
    { empty: "" }));
}

function frontierSection() {
  const host = html("div", { class: "chart" });
  const text = data.kind === "frontier"
    ? "Each dot is a plan that the automatic strategy made for one budget: the least predicted time that keeps it."
    : "Down and to the left is better. Lines are what automatic recomputation reaches at other budgets, for ebb's defaults and for everything together: its predicted times, scaled to what the row itself took.";
  const key = study.curves.length > 1 ? html("div", { class: "strip-key" }, study.curves.map((curve, c) =>
    html("span", {}, html("span", { class: `swatch line curve-${c}` }), `automatic plans, ${curve.row}`))) : null;
  const node = section("frontier", "Peak against time", text, host, key, data.kind === "frontier" ? curveTable() : null);
  parts.frontier = new FrontierChart(host, { onPick: (name) => pick(name, { scroll: true }) });
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
if (rows.length) {
  main.append(detailsSection());
  const wanted = decodeURIComponent(location.hash.slice(1));
  pick(data.timelines[wanted] ? wanted : (baseline ?? rows[0]).name);
}
made();
