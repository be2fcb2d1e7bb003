// Peak against time: every row as a point, and the curves that automatic plans make.
class FrontierChart {
  constructor(host, { onPick }) {
    this.host = host;
    this.onPick = onPick;
    this.node = svg("svg", { class: "frontier", role: "group", "aria-label": "Peak memory against time a step" });
    host.append(this.node);
    onWidth(host, (width) => this.draw(width));
  }

  points() {
    const of = (all, prefix) => all.filter((row) => row.step_ms).map((row) => ({
      row, name: prefix + row.name, other: prefix !== "", bytes: row.planned_peak_bytes, ms: row.step_ms.median, low: row.step_ms.low, high: row.step_ms.high,
    }));
    return [...of(rows, ""), ...of(other?.rows ?? [], otherPrefix)];
  }
  curves() {
    const of = (all, kind) => all.map((curve, c) => ({
      name: curve.row, kind: kind ?? `curve-${c % 2}`, other: Boolean(kind),
      points: curve.points.map((p) => ({ bytes: p.planned_peak_bytes, ms: p.step_ms ?? p.predicted_step_ms, point: p })),
    }));
    return [...of(study.curves), ...of(other?.curves ?? [], "curve-other")];
  }
  redraw() {
    if (this.width) this.draw(this.width);
  }

  draw(width) {
    this.width = width;
    const phone = width < 500, height = Math.max(320, Math.min(460, width * 0.5)), left = phone ? 62 : 76, right = phone ? 10 : 24, top = 16, bottom = 52;
    const points = this.points(), curves = this.curves();
    const all = [...points, ...curves.flatMap((curve) => curve.points)];
    if (!all.length) return;
    const bytes = all.map((p) => p.bytes), ms = all.flatMap((p) => [p.low ?? p.ms, p.high ?? p.ms]);
    const pad = (low, high) => (high - low || high) * 0.08;
    const [b0, b1] = [Math.min(...bytes), Math.max(...bytes)], [m0, m1] = [Math.min(...ms), Math.max(...ms)];
    const x = linear(Math.max(0, b0 - pad(b0, b1)), b1 + pad(b0, b1), left, width - right);
    const y = linear(Math.max(0, m0 - pad(m0, m1)), m1 + pad(m0, m1), height - bottom, top);
    this.node.setAttribute("width", width);
    this.node.setAttribute("height", height);
    this.node.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.frame = { x, y, top, bottom: height - bottom, left, right: width - right };
    this.budget = svg("g", { class: "budget-mark" });
    const boxes = points.map((p) => ({ x0: x(p.bytes) - 7, x1: x(p.bytes) + 7, y0: y(p.ms) - 7, y1: y(p.ms) + 7 }));
    for (const curve of curves) for (const p of curve.points) boxes.push({ x0: x(p.bytes) - 3, x1: x(p.bytes) + 3, y0: y(p.ms) - 3, y1: y(p.ms) + 3 });
    const bars = points.filter((p) => p.high > p.low).map((p) => ({ x0: x(p.bytes) - 5, x1: x(p.bytes) + 5, y0: y(p.high) - 1, y1: y(p.low) + 1 }));
    this.node.replaceChildren(
      this.axes(x, y, { left, right: width - right, top, bottom: height - bottom }),
      this.budget, ...points.filter((p) => p.high > p.low).map((p) => this.bar(p, x, y)),
      ...curves.map((curve) => this.curve(curve, x, y)),
      ...this.labels(points.filter((p) => !p.other), x, y, boxes, bars, { left, right: width - right, top, bottom: height - bottom }, phone ? 40 : 90),
      ...points.map((p) => this.point(p, x, y)));
    this.select(this.selected);
  }

  // From the fastest to the slowest run.
  bar({ name, other, bytes, low, high }, x, y) {
    const at = round(x(bytes)), [y0, y1] = [round(y(high)), round(y(low))];
    return svg("g", { class: `error-bar${other ? " of-other" : ""}`, "data-row": name },
      svg("line", { x1: at, x2: at, y1: y0, y2: y1 }),
      [y0, y1].map((end) => svg("line", { x1: at - 4, x2: at + 4, y1: end, y2: end })));
  }

  axes(x, y, frame) {
    const wanted = Math.max(3, (frame.right - frame.left) / 110);
    let sizes = byteTicks(x.invert(frame.left), x.invert(frame.right), wanted);
    if (sizes.length < 3) sizes = byteTicks(x.invert(frame.left), x.invert(frame.right), 2 * wanted); // round numbers are far apart
    const room = Math.max(...sizes.map((tick) => textWidth(tick.label))) + 14; // of a label, with what is between two
    if (sizes.length > 2 && x(sizes[1].bytes) - x(sizes[0].bytes) < room) sizes = sizes.filter((_, k) => k % 2 === 1);
    return svg("g", { class: "axis" },
      ticks(y.invert(frame.bottom), y.invert(frame.top), 5).map((ms) => [
        svg("line", { x1: frame.left, x2: frame.right, y1: round(y(ms)), y2: round(y(ms)) }),
        svg("text", { x: frame.left - 8, y: round(y(ms)) + 4, "text-anchor": "end" }, tickMs(ms)),
      ]),
      sizes.map((tick) =>
        svg("text", { x: round(x(tick.bytes)), y: frame.bottom + 20, "text-anchor": "middle" }, tick.label)),
      svg("line", { class: "base", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }),
      svg("text", { class: "axis-title", x: (frame.left + frame.right) / 2, y: frame.bottom + 42, "text-anchor": "middle" },
        this.width < 500 ? "time a step over peak memory" : "peak memory"),
      this.width < 500 ? null : svg("text", { class: "axis-title", transform: `translate(14 ${(frame.top + frame.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "time a step"));
  }

  curve(curve, x, y) {
    const line = curve.points.map((p, k) => `${k ? "L" : "M"}${round(x(p.bytes))} ${round(y(p.ms))}`).join("");
    const tell = (p, clientX, clientY) => showTip([
      [`automatic plan${curve.name ? `, ${curve.name}` : ""}${curve.other ? ", the other study" : ""}`, "tip-title"],
      [`budget ${formatBytes(p.point.budget_bytes)}`],
      [`peak ${formatBytes(p.bytes)}, ${formatMs(p.ms)} a step${p.point.step_ms === undefined ? " predicted" : ""}`],
      ...Object.entries(p.point.tiers ?? {}).map(([tier, held]) => [`${formatBytes(held.planned_bytes)} on the ${tier}, ${formatBytes(held.fetched_bytes + held.stored_bytes)} moved a step`]),
      [`${formatRatio(p.point.overhead)} the time of keeping all; ${p.point.recomputed_nodes} instructions run again`, "tip-moment"],
    ], clientX, clientY);
    // Of a frontier's page every point is a row; of an ablation's none is.
    const open = (p) => data.kind === "frontier" && !curve.other && this.onPick(rows[curve.points.indexOf(p)]?.name);
    return svg("g", { class: `curve ${curve.kind}` }, svg("path", { d: line }),
      curve.points.map((p) => svg("g", {
        class: "curve-point", tabindex: 0, role: "button", "aria-label": `budget ${formatBytes(p.point.budget_bytes)}: ${formatMs(p.ms)} a step`,
        ...pointing((clientX, clientY) => tell(p, clientX, clientY), () => open(p)),
      }, svg("circle", { class: "touch", cx: round(x(p.bytes)), cy: round(y(p.ms)), r: 9 }),
        svg("circle", { class: "dot", cx: round(x(p.bytes)), cy: round(y(p.ms)), r: 3 }))));
  }

  // Beside each point where no other label, point or border is, and no error bar if that is possible; a line leads to
  // those further away.
  labels(points, x, y, boxes, bars, frame, furthest) {
    const taken = [...boxes];
    const apart = (box, others) => others.every((other) => box.x1 < other.x0 || box.x0 > other.x1 || box.y1 < other.y0 || box.y0 > other.y1);
    const free = (box) => box.x0 >= frame.left && box.x1 <= frame.right && box.y0 >= frame.top - 8 && box.y1 <= frame.bottom && apart(box, taken);
    const important = (p) => ["baseline", "all", "defaults"].indexOf(p.row.name);
    return [...points].sort((a, b) => important(b) - important(a)).map((p) => {
      const text = title(p.row), w = textWidth(text, "650 12px system-ui, sans-serif") + 4, px = x(p.bytes), py = y(p.ms);
      for (let k = 0; k < 2 * Math.floor(furthest / 10); ++k) {
        // First all places that no error bar crosses, then the others.
        const distance = 10 * (1 + (k % Math.floor(furthest / 10))), crossing = k >= Math.floor(furthest / 10);
        for (const angle of [0, 180, -90, 90, -45, 45, -135, 135]) {
          const cx = px + distance * Math.cos((angle * Math.PI) / 180), cy = py + distance * Math.sin((angle * Math.PI) / 180);
          const above = Math.max(frame.left, Math.min(cx - w / 2, frame.right - w)); // or below; near a border not centred
          const x0 = Math.abs(angle) < 90 ? cx : Math.abs(angle) > 90 ? cx - w : above;
          const box = { x0, x1: x0 + w, y0: cy - 8, y1: cy + 8 };
          if (!free(box) || (!crossing && !apart(box, bars))) continue;
          taken.push(box);
          return svg("g", { class: "point-label", "data-row": p.row.name },
            distance > 20 ? svg("line", { x1: round(px), y1: round(py), x2: round(cx), y2: round(cy) }) : null,
            svg("text", { x: round(x0 + 2), y: round(cy + 4) }, text));
        }
      }
      return null; // the tooltip still tells
    }).filter(Boolean);
  }

  point({ row, name, other: ofOther, bytes, ms, low, high }, x, y) {
    const kind = ofOther ? "other" : kindOf(row);
    const tell = (clientX, clientY) => showTip([
      [`${titleOf(name)}`, "tip-title"],
      [`peak ${formatBytes(bytes)}${row.memory_ratio ? `, ${formatRatio(row.memory_ratio)} the baseline` : ""}`],
      [`${formatMs(ms)} a step${row.time_ratio ? `, ${formatRatio(row.time_ratio)} the baseline` : ""}`],
      [high > low ? `runs from ${formatMs(low)} to ${formatMs(high)}` : ""],
      [row.predicted_step_ms ? `predicted ${formatMs(row.predicted_step_ms)}` : ""],
      [row.budget_bytes ? `budget ${formatBytes(row.budget_bytes)}` : ""],
      [row.recomputed_nodes ? `${row.recomputed_nodes} instructions run again` : "", "tip-moment"],
    ].filter(([text]) => text), clientX, clientY);
    return svg("g", {
      class: `point point-${kind}`, tabindex: 0, role: "button", "data-row": name,
      "aria-label": `${titleOf(name)}: ${formatBytes(bytes)}, ${formatMs(ms)}`,
      ...pointing(tell, () => this.onPick(name)),
    }, markShape(kind, round(x(bytes)), round(y(ms))));
  }

  select(name) {
    this.selected = name;
    for (const node of this.node.querySelectorAll("[data-row]")) node.classList.toggle("selected", node.dataset.row === name);
    if (!this.frame) return;
    const { x, top, bottom, left, right } = this.frame, budget = rowNamed(name)?.budget_bytes, at = budget ? round(x(budget)) : -1;
    this.budget.replaceChildren(...(at >= left && at <= right ? [svg("line", { class: "budget", x1: at, x2: at, y1: top, y2: bottom })] : []));
  }
}

// The mark of a row: what it is made of says which.
function markShape(kind, cx, cy) {
  if (kind === "baseline" || kind === "all") return svg("path", { d: `M${cx} ${cy - 7}L${cx + 7} ${cy}L${cx} ${cy + 7}L${cx - 7} ${cy}Z` });
  if (kind === "other") return svg("path", { d: `M${cx} ${cy - 6}L${cx + 6} ${cy + 5}L${cx - 6} ${cy + 5}Z` });
  if (kind === "defaults") return svg("rect", { x: cx - 5.5, y: cy - 5.5, width: 11, height: 11 });
  return svg("circle", { cx, cy, r: 5 });
}

const markNames = {
  baseline: "baseline", single: "one technique", pair: "several techniques", defaults: "ebb's defaults", all: "everything together", other: "the other study",
};

// What the marks, bars and lines of the chart mean; only those that are there.
function markLegend() {
  const kinds = new Set(rows.filter((row) => row.step_ms).map(kindOf));
  if (other?.rows.some((row) => row.step_ms)) kinds.add("other");
  const item = (text, ...shapes) => html("li", {}, svg("svg", { width: 18, height: 18, viewBox: "0 0 18 18", "aria-hidden": "true" }, shapes), text);
  return html("ul", { class: "legend mark-legend", "aria-label": "Marks" },
    Object.keys(markNames).filter((kind) => kinds.has(kind)).map((kind) => item(markNames[kind], svg("g", { class: `point point-${kind}` }, markShape(kind, 9, 9)))),
    rows.some((row) => row.step_ms?.high > row.step_ms?.low)
      ? item("fastest to slowest run", svg("g", { class: "error-bar" }, svg("line", { x1: 9, x2: 9, y1: 2, y2: 16 }), svg("line", { x1: 5, x2: 13, y1: 2, y2: 2 }), svg("line", { x1: 5, x2: 13, y1: 16, y2: 16 }))) : null,
    study.curves.map((curve, c) => item(`automatic plans${curve.row ? `, ${curve.row}` : ""}`,
      svg("g", { class: `curve curve-${c % 2}` }, svg("path", { d: "M1 9H17" }), svg("circle", { class: "dot", cx: 9, cy: 9, r: 3 })))),
    other?.curves.length ? item("automatic plans, the other study", svg("g", { class: "curve curve-other" }, svg("path", { d: "M1 9H17" }))) : null,
    rows.some((row) => row.budget_bytes) ? item("budget of the chosen row", svg("line", { class: "budget", x1: 9, x2: 9, y1: 1, y2: 17 })) : null);
}
