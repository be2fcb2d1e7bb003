// What is drawn under the memory of a step, on the same axis: kernels and copies, lane by lane, and the bytes in
// other tiers.
const laneHeight = 20, tierHeight = 58;

// The rows of lanes: a name, which instructions, and when each begins and how long it takes (milliseconds).
function laneRows(stack, axis) {
  const { instructions, lanes } = stack.timeline, times = stack.times();
  const all = instructions.op.map((_, i) => i);
  if (!instructions.lane) {
    const clock = stack.clock();
    const rows = [{ name: "kernels", of: all, start: (i) => clock[i], ms: (i) => times[i] }];
    if (axis === "time" && instructions.measured_ms.length) {
      const predicted = [0];
      instructions.ms.forEach((ms, i) => predicted.push(predicted[i] + ms));
      rows[0].name = "measured";
      rows.push({ name: "predicted", of: all, start: (i) => predicted[i], ms: (i) => instructions.ms[i] });
    }
    return rows;
  }
  return lanes.map((name, lane) => ({
    name: name === "compute" ? "kernels" : name, of: all.filter((i) => instructions.lane[i] === lane),
    start: (i) => instructions.start_ms[i], ms: (i) => times[i],
  })).filter((row) => row.of.length);
}

const laneClass = (row, phase) => (row.name === "store" || row.name === "fetch" ? `copy-${row.name}` : `phase-${phase}`);

// Kernels of a row as bars; those narrower than a pixel are joined with their neighbours of the same kind.
function drawLane(chart, row, y) {
  const { phase, op } = chart.stack.timeline.instructions, group = svg("g", { class: "lane", "data-lane": row.name });
  const span = (i) => (chart.axis === "time" ? [row.start(i), row.start(i) + row.ms(i)] : [i, i + 1]).map(chart.x);
  let open = null;
  const close = () => {
    if (!open) return;
    const width = Math.max(0.5, open.x1 - open.x0), text = chart.stack.names[op[open.first]];
    group.append(svg("rect", { class: `kernel ${open.kind}`, x: round(open.x0), y: y + 2, width: round(width), height: laneHeight - 5 }));
    if (open.count === 1 && width > 34 && textWidth(text, "11px system-ui, sans-serif") + 6 < width)
      group.append(svg("text", { class: `kernel-name on-${open.kind}`, x: round(open.x0 + 3), y: y + laneHeight - 7 }, text));
    open = null;
  };
  for (const i of row.of) {
    const [x0, x1] = span(i);
    if (x1 < chart.margin.left || x0 > chart.width - chart.margin.right) continue;
    const kind = laneClass(row, phase[i]);
    if (open && open.kind === kind && x0 - open.x1 < 0.4 && (x1 - x0 < 1.2 || open.x1 - open.x0 < 1.2)) {
      open.x1 = x1;
      ++open.count;
      continue;
    }
    close();
    open = { kind, x0, x1, first: i, count: 1 };
  }
  close();
  return group;
}

// The instruction of a row at a place of the axis.
function inLane(chart, row, position) {
  if (chart.axis !== "time") {
    const i = Math.floor(position);
    return row.of.includes(i) ? i : undefined;
  }
  return row.of.find((i) => row.start(i) <= position && position < row.start(i) + Math.max(row.ms(i), (chart.range[1] - chart.range[0]) / 400));
}

// The bytes that another tier holds over the step.
function drawTier(chart, tier, top) {
  const most = Math.max(1, tier.held_bytes, ...tier.live), y = linear(0, most, top + tierHeight - 8, top + 10);
  let up = "", first = null, end = 0;
  for (const { x0, x1, i } of chart.columns()) {
    up += `${first === null ? "M" : "L"}${round(x0)} ${round(y(tier.live[i]))}H${round(x1)}`;
    first ??= x0;
    end = x1;
  }
  const base = round(y(0));
  return [
    svg("g", { class: "tier", "data-tier": tier.name, "clip-path": "url(#plot)" },
      svg("path", { d: `${up}L${round(end)} ${base}H${round(first ?? 0)}Z` }),
      svg("line", { class: "held", x1: chart.margin.left, x2: chart.width - chart.margin.right, y1: round(y(tier.held_bytes)), y2: round(y(tier.held_bytes)) })),
    svg("g", { class: "axis" }, svg("line", { class: "base", x1: chart.margin.left, x2: chart.width - chart.margin.right, y1: base, y2: base }),
      svg("text", { x: chart.margin.left - 8, y: top + 20, "text-anchor": "end", class: "lane-name" }, tier.name),
      svg("text", { x: chart.margin.left - 8, y: top + 36, "text-anchor": "end" }, formatBytes(tier.held_bytes))),
  ];
}
