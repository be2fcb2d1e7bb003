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
    return rows.filter((row) => row.step_ms).map((row) => ({ row, bytes: row.planned_peak_bytes, ms: row.step_ms.median }));
  }
  curves() {
    return study.curves.map((curve) => ({
      name: curve.row,
      points: curve.points.map((p) => ({ bytes: p.planned_peak_bytes, ms: p.step_ms ?? p.predicted_step_ms, point: p })),
    }));
  }

  draw(width) {
    const height = Math.max(320, Math.min(460, width * 0.5)), left = 76, right = 24, top = 16, bottom = 52;
    const points = this.points(), curves = this.curves();
    const all = [...points, ...curves.flatMap((curve) => curve.points)];
    if (!all.length) return;
    const bytes = all.map((p) => p.bytes), ms = all.map((p) => p.ms);
    const pad = (low, high) => (high - low || high) * 0.08;
    const [b0, b1] = [Math.min(...bytes), Math.max(...bytes)], [m0, m1] = [Math.min(...ms), Math.max(...ms)];
    const x = linear(Math.max(0, b0 - pad(b0, b1)), b1 + pad(b0, b1), left, width - right);
    const y = linear(Math.max(0, m0 - pad(m0, m1)), m1 + pad(m0, m1), height - bottom, top);
    this.node.setAttribute("width", width);
    this.node.setAttribute("height", height);
    this.node.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const boxes = points.map((p) => ({ x0: x(p.bytes) - 7, x1: x(p.bytes) + 7, y0: y(p.ms) - 7, y1: y(p.ms) + 7 }));
    for (const curve of curves) for (const p of curve.points) boxes.push({ x0: x(p.bytes) - 3, x1: x(p.bytes) + 3, y0: y(p.ms) - 3, y1: y(p.ms) + 3 });
    this.node.replaceChildren(
      this.axes(x, y, { left, right: width - right, top, bottom: height - bottom }),
      ...curves.map((curve, c) => this.curve(curve, c, x, y)),
      ...this.labels(points, x, y, boxes, { left, right: width - right, top, bottom: height - bottom }),
      ...points.map((p) => this.point(p, x, y)));
    this.select(this.selected);
  }

  axes(x, y, frame) {
    return svg("g", { class: "axis" },
      ticks(y.invert(frame.bottom), y.invert(frame.top), 5).map((ms) => [
        svg("line", { x1: frame.left, x2: frame.right, y1: round(y(ms)), y2: round(y(ms)) }),
        svg("text", { x: frame.left - 8, y: round(y(ms)) + 4, "text-anchor": "end" }, tickMs(ms)),
      ]),
      byteTicks(x.invert(frame.left), x.invert(frame.right), Math.max(3, (frame.right - frame.left) / 110)).map((tick) =>
        svg("text", { x: round(x(tick.bytes)), y: frame.bottom + 20, "text-anchor": "middle" }, tick.label)),
      svg("line", { class: "base", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }),
      svg("text", { class: "axis-title", x: (frame.left + frame.right) / 2, y: frame.bottom + 42, "text-anchor": "middle" }, "peak memory"),
      svg("text", { class: "axis-title", transform: `translate(14 ${(frame.top + frame.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "time a step"));
  }

  curve(curve, index, x, y) {
    const line = curve.points.map((p, k) => `${k ? "L" : "M"}${round(x(p.bytes))} ${round(y(p.ms))}`).join("");
    return svg("g", { class: `curve curve-${index}` }, svg("path", { d: line }),
      curve.points.map((p) => svg("circle", {
        cx: round(x(p.bytes)), cy: round(y(p.ms)), r: 3,
        onpointermove: (event) => showTip([
          [`automatic plan${curve.name ? `, ${curve.name}` : ""}`, "tip-title"],
          [`budget ${formatBytes(p.point.budget_bytes)}`],
          [`peak ${formatBytes(p.bytes)}, ${formatMs(p.ms)} a step`],
          [`${formatRatio(p.point.overhead)} the time of keeping all; ${p.point.recomputed_nodes} instructions run again`, "tip-moment"],
        ], event.clientX, event.clientY),
        onpointerleave: hideTip,
      })));
  }

  // Beside each point where no other label, point or border is; a line leads to those further away.
  labels(points, x, y, boxes, frame) {
    const taken = [...boxes];
    const free = (box) => box.x0 >= frame.left && box.x1 <= frame.right && box.y0 >= frame.top - 8 && box.y1 <= frame.bottom &&
      taken.every((other) => box.x1 < other.x0 || box.x0 > other.x1 || box.y1 < other.y0 || box.y0 > other.y1);
    const important = (p) => ["baseline", "all", "defaults"].indexOf(p.row.name);
    return [...points].sort((a, b) => important(b) - important(a)).map((p) => {
      const text = title(p.row), w = textWidth(text) + 4, px = x(p.bytes), py = y(p.ms);
      for (let distance = 10; distance <= 90; distance += 10)
        for (const angle of [0, 180, -90, 90, -45, 45, -135, 135]) {
          const cx = px + distance * Math.cos((angle * Math.PI) / 180), cy = py + distance * Math.sin((angle * Math.PI) / 180);
          const x0 = Math.abs(angle) < 90 ? cx : Math.abs(angle) > 90 ? cx - w : cx - w / 2;
          const box = { x0, x1: x0 + w, y0: cy - 8, y1: cy + 8 };
          if (!free(box)) continue;
          taken.push(box);
          return svg("g", { class: "point-label", "data-row": p.row.name },
            distance > 20 ? svg("line", { x1: round(px), y1: round(py), x2: round(cx), y2: round(cy) }) : null,
            svg("text", { x: round(x0 + 2), y: round(cy + 4) }, text));
        }
      return null; // the tooltip still tells
    }).filter(Boolean);
  }

  point({ row, bytes, ms }, x, y) {
    const cx = round(x(bytes)), cy = round(y(ms)), kind = kindOf(row);
    const shape = kind === "baseline" || kind === "all" ? svg("path", { d: `M${cx} ${cy - 7}L${cx + 7} ${cy}L${cx} ${cy + 7}L${cx - 7} ${cy}Z` })
      : kind === "defaults" ? svg("rect", { x: cx - 5.5, y: cy - 5.5, width: 11, height: 11 }) : svg("circle", { cx, cy, r: 5 });
    const tell = (clientX, clientY) => showTip([
      [title(row), "tip-title"],
      [`peak ${formatBytes(bytes)}${row.memory_ratio ? `, ${formatRatio(row.memory_ratio)} the baseline` : ""}`],
      [`${formatMs(ms)} a step${row.time_ratio ? `, ${formatRatio(row.time_ratio)} the baseline` : ""}`],
      ...(row.recomputed_nodes ? [[`${row.recomputed_nodes} instructions run again`, "tip-moment"]] : []),
    ], clientX, clientY);
    return svg("g", {
      class: `point point-${kind}`, tabindex: 0, role: "button", "data-row": row.name,
      "aria-label": `${title(row)}: ${formatBytes(bytes)}, ${formatMs(ms)}`,
      onpointermove: (event) => tell(event.clientX, event.clientY), onpointerleave: hideTip, onblur: hideTip,
      onfocus: (event) => {
        const box = event.currentTarget.getBoundingClientRect();
        tell(box.right, box.top);
      },
      onclick: () => this.onPick(row.name),
      onkeydown: (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), this.onPick(row.name)),
    }, shape);
  }

  select(name) {
    this.selected = name;
    for (const node of this.node.querySelectorAll("[data-row]")) node.classList.toggle("selected", node.dataset.row === name);
  }
}
