// Tables about one row: what its plan decided, what is alive at its peak, where its time goes.
function table(headings, lines, { empty, label = "Table" }) {
  if (!lines.length) return html("p", { class: "note" }, empty);
  return scrolling(label, html("table", { class: "plain" },
    html("thead", {}, html("tr", {}, headings.map(([text, kind]) => html("th", { scope: "col", class: kind ?? "" }, text)))),
    html("tbody", {}, lines.map((cells) => html("tr", {}, cells.map((cell, k) => html("td", { class: headings[k][1] ?? "" }, k === 0 && typeof cell === "string" ? breakable(cell) : cell)))))));
}

// A bar behind a number: its share of the largest.
function share(value, most, text, colour) {
  return html("span", { class: "share" },
    html("span", { class: "share-bar", style: `width:${round((100 * value) / (most || 1))}%;${colour ? `background:${colour}` : ""}` }),
    html("span", { class: "share-text" }, text));
}

const longest = 12; // lines a table shows before it is opened
function folded(headings, lines, options) {
  if (lines.length <= longest) return table(headings, lines, options);
  const host = html("div");
  const show = (all) => host.replaceChildren(table(headings, all ? lines : lines.slice(0, longest), options),
    html("button", { type: "button", class: "quiet", onclick: () => show(!all) }, all ? "Show fewer" : `Show all ${lines.length}`));
  show(false);
  return host;
}

function decisionsTable(timeline) {
  const most = Math.max(...timeline.decisions.map((d) => d.bytes), 1);
  const size = bytesLike(most), time = msLike(Math.max(...timeline.decisions.map((d) => d.ms), 0));
  return folded([["Module"], ["Op"], ["Times", "number"], ["Bytes freed"], ["Time to compute again", "number"]],
    timeline.decisions.map((d) => [d.path || topLevel, html("code", {}, d.op), String(d.count),
      share(d.bytes, most, size(d.bytes), categoryColour("activations")), time(d.ms)]),
    { label: "Computed again", empty: "Nothing is computed again: every activation is kept until its last reader." });
}

function modulesTable(timeline) {
  const total = (module) => module.bytes.reduce((a, b) => a + b, 0);
  const most = Math.max(...timeline.modules.map(total), 1), size = bytesLike(most);
  const bar = (module) => {
    let at = 0;
    return svg("svg", { width: "100%", height: 14, "aria-hidden": "true" }, categoryOrder.map((name) => {
      const bytes = module.bytes[timeline.categories.indexOf(name)];
      if (!bytes) return null;
      const part = svg("rect", { x: `${round((100 * at) / most)}%`, width: `${round((100 * bytes) / most)}%`, height: 14, fill: categoryColour(name) },
        svg("title", {}, `${categoryLabels[name]}: ${formatBytes(bytes)}`));
      at += bytes;
      return part;
    }));
  };
  return folded([["Module"], ["", "bar"], ["Bytes", "number"]],
    timeline.modules.map((module) => [module.path || topLevel, bar(module), size(total(module))]), { label: "Modules at the peak", empty: "Nothing is alive." });
}

function tensorsTable(stack) {
  const { path, op, type, category, bytes, first, last, offset } = stack.timeline.buffers;
  const alive = stack.alive(stack.timeline.peak_instruction).map(({ buffer }) => buffer).sort((a, b) => bytes[b] - bytes[a]);
  const size = bytesLike(bytes[alive[0]] ?? 0);
  return folded([["Tensor"], ["Type", "type"], ["Made by"], ...(stack.timeline.sources ? [["Source", "source"]] : []), ["Category", "nowrap"], ["Life", "number"], ["Bytes", "number"]],
    alive.slice(0, 200).map((b) => {
      const name = stack.timeline.categories[category[b]];
      return [stack.place(path[b]), type ? stack.names[type[b]] : "", html("code", {}, stack.names[op[b]]),
        ...(stack.timeline.sources ? [stack.source(path[b])] : []),
        html("span", {}, html("span", { class: "swatch", style: `background:${categoryColour(name)}` }), categoryLabels[name]),
        offset[b] < 0 ? "stays" : `${first[b]}–${last[b]}`, size(bytes[b])];
    }), { label: "Tensors at the peak", empty: "Nothing is alive." });
}

function timeTable(timeline) {
  const { op, ms, measured_ms } = timeline.instructions, groups = new Map();
  op.forEach((name, i) => {
    const group = groups.get(name) ?? { count: 0, predicted: 0, measured: 0 };
    group.count += 1;
    group.predicted += ms[i];
    group.measured += measured_ms[i] ?? 0;
    groups.set(name, group);
  });
  const measured = measured_ms.length > 0, key = measured ? "measured" : "predicted";
  const sorted = [...groups].sort((a, b) => b[1][key] - a[1][key]), most = sorted[0]?.[1][key];
  const headings = [["Op"], ["Times", "number"], [measured ? "Measured" : "Predicted"]];
  if (measured) headings.push(["Predicted", "number"], ["Measured ÷ predicted", "number"]);
  const time = msLike(most ?? 0);
  return folded(headings, sorted.map(([name, group]) => [html("code", {}, breakable(timeline.names[name])), String(group.count),
    share(group[key], most, time(group[key])), ...(measured ? [time(group.predicted), group.predicted > 0 ? formatRatio(group.measured / group.predicted) : ""] : [])]), { label: "Time by op", empty: "Nothing runs." });
}

// What was planned and what was found: memory part by part, and the time of a step.
function promiseTable(row) {
  const size = bytesLike(Math.max(row.planned_peak_bytes, row.measured_peak_bytes));
  const line = (name, planned, measured) => [name, size(planned), size(measured),
    planned === measured ? "equal" : `${measured > planned ? "+" : "−"}${formatBytes(Math.abs(measured - planned))}`];
  // Only what stays between steps has memory of its own; the rest takes turns in the arena.
  const own = ["weights", "optimizer"].filter((name) => row.measured_staying_by_category[name] > 0);
  const sum = (bytes) => own.reduce((total, name) => total + bytes[name], 0);
  // With other tiers, weights and state are at the peak as copies in the arena too: there the sum alone compares.
  const parts = row.tiers ? [] : [
    ...own.map((name) => line(categoryLabels[name], row.planned_by_category[name], row.measured_staying_by_category[name])),
    line("arena, inputs and results", row.planned_peak_bytes - sum(row.planned_by_category),
      row.measured_peak_bytes - sum(row.measured_staying_by_category)),
  ];
  const lines = [...parts, line("in all", row.planned_peak_bytes, row.measured_peak_bytes)];
  if (row.step_ms && row.predicted_step_ms) {
    const time = msLike(Math.max(row.step_ms.median, row.predicted_step_ms));
    lines.push(["time of a step", time(row.predicted_step_ms), time(row.step_ms.median), formatRatio(row.step_ms.median / row.predicted_step_ms)]);
  }
  return table([["Part"], ["Planned", "number"], ["Measured", "number"], ["", "number"]], lines, { empty: "", label: "Planned and measured" });
}

// Two rows side by side.
function comparedTable(row, compared, names) {
  const size = bytesLike(Math.max(row.planned_peak_bytes, compared.planned_peak_bytes));
  const ratio = (a, b) => (a > 0 && b > 0 ? formatRatio(a / b) : "");
  const bytes = (name, a, b) => [name, size(a), size(b), ratio(a, b)];
  const lines = [bytes("peak", row.planned_peak_bytes, compared.planned_peak_bytes),
    ...categoryOrder.filter((name) => row.planned_by_category?.[name] > 0 || compared.planned_by_category?.[name] > 0).map((name) =>
      bytes(`${categoryLabels[name]} at the peak`, row.planned_by_category?.[name] ?? 0, compared.planned_by_category?.[name] ?? 0))];
  const times = [["measured time of a step", row.step_ms?.median, compared.step_ms?.median], ["predicted time of a step", row.predicted_step_ms, compared.predicted_step_ms]];
  for (const [name, a, b] of times) {
    if (a === undefined && b === undefined) continue;
    const time = msLike(Math.max(a ?? 0, b ?? 0));
    lines.push([name, a === undefined ? "" : time(a), b === undefined ? "" : time(b), ratio(a ?? 0, b ?? 0)]);
  }
  if (row.recomputed_nodes !== undefined) lines.push(["instructions run again", formatCount(row.recomputed_nodes), formatCount(compared.recomputed_nodes ?? 0), ""]);
  const number = (loss) => (Number.isFinite(loss) ? loss.toFixed(4) : "");
  if (row.loss !== undefined && compared.loss !== undefined) lines.push(["loss", number(row.loss), number(compared.loss), ""]);
  return table([[""], [names[0], "number"], [names[1], "number"], ["Ratio", "number"]], lines, { empty: "", label: "Two rows compared" });
}
