// The memory of a step over its instructions: stacked by category, or as buffers lie in the arena.
class TimelineChart {
  constructor(host, { onRow }) {
    this.host = host;
    this.onRow = onRow;
    this.view = "stack"; // or "arena"
    this.axis = "instructions"; // or "time"
    this.height = 380;
    this.margin = { left: 76, right: 18, top: 30, bottom: 52 };
    this.node = svg("svg", {
      class: "timeline", tabindex: 0, role: "application", height: this.height,
      "aria-roledescription": "chart", "aria-describedby": "timeline-keys",
    });
    host.append(this.node);
    this.listen();
    onWidth(host, (width) => {
      this.width = width;
      if (this.stack) this.draw();
    });
  }

  show(name, { keepZoom = false } = {}) {
    this.stack = stackOf(name);
    this.starts = [0];
    this.stack.times().forEach((ms, i) => this.starts.push(this.starts[i] + ms));
    if (!keepZoom || !this.range || this.range[1] > this.end()) this.range = [0, this.end()];
    this.cursor = null;
    this.node.setAttribute("aria-label",
      `Memory of ${name} over ${this.stack.count} instructions; peak ${formatBytes(this.stack.most)}`);
    if (this.width) this.draw();
  }
  setView(view) {
    this.view = view;
    this.draw();
  }
  setAxis(axis) {
    this.axis = axis;
    this.range = [0, this.end()];
    this.draw();
  }

  // Positions along the axis: instruction numbers, or milliseconds.
  position(i) {
    return this.axis === "time" ? this.starts[i] : i;
  }
  end() {
    return this.position(this.stack.count);
  }
  instructionAt(position) {
    const count = this.stack.count;
    if (this.axis !== "time") return Math.max(0, Math.min(count - 1, Math.floor(position)));
    let low = 0, high = count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= position) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  zoom(factor, about = (this.range[0] + this.range[1]) / 2) {
    const least = this.axis === "time" ? this.end() / 5000 : 4;
    const length = Math.max(least, Math.min(this.end(), (this.range[1] - this.range[0]) * factor));
    const share = (about - this.range[0]) / (this.range[1] - this.range[0]);
    this.moveTo(about - share * length, length);
  }
  moveTo(begin, length) {
    const from = Math.max(0, Math.min(begin, this.end() - length));
    this.range = [from, from + length];
    this.draw();
  }
  reset() {
    this.range = [0, this.end()];
    this.draw();
  }

  // Stretches of about a pixel or more, each with the fullest of its instructions: no peak is lost.
  columns() {
    const result = [];
    const last = this.instructionAt(this.range[1] - 1e-9);
    for (let i = this.instructionAt(this.range[0]); i <= last;) {
      const x0 = this.x(this.position(i));
      let best = i, next = i + 1;
      while (next <= last && this.x(this.position(next + 1)) - x0 < 0.75) {
        if (this.stack.total[next] > this.stack.total[best]) best = next;
        ++next;
      }
      result.push({ x0, x1: this.x(this.position(next)), i: best });
      i = next;
    }
    return result;
  }

  draw() {
    const { left, right, top, bottom } = this.margin, { stack } = this;
    this.node.setAttribute("width", this.width);
    this.node.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.x = linear(this.range[0], this.range[1], left, this.width - right);
    const most = this.view === "arena" ? Math.max(1, stack.timeline.arena_bytes) : stack.most;
    this.most = most;
    this.y = linear(0, most * 1.04, this.height - bottom, top);
    const clip = svg("clipPath", { id: "plot" }, svg("rect", {
      x: left, y: 0, width: this.width - left - right, height: this.height,
    }));
    this.mark = svg("g", { class: "mark", "clip-path": "url(#plot)" });
    this.selection = svg("rect", { class: "selection", y: top, height: this.height - bottom - top, width: 0 });
    this.node.replaceChildren(
      svg("defs", {}, clip),
      byteAxis(this.y, 0, most, left, this.width - right),
      svg("g", { "clip-path": "url(#plot)" }, this.view === "arena" ? this.rectangles() : this.areas()),
      this.phases(), this.axisBelow(), this.view === "stack" ? this.peak() : "", this.mark, this.selection);
    this.drawMark();
  }

  areas() {
    const columns = this.columns(), base = new Float64Array(columns.length);
    return categoryOrder.map((name, c) => {
      if (!this.stack.used.includes(name)) return null;
      let up = "", down = "";
      columns.forEach(({ x0, x1, i }, k) => {
        const low = round(this.y(base[k]));
        base[k] += this.stack.live[c][i];
        const high = round(this.y(base[k]));
        up += `${k ? "L" : "M"}${round(x0)} ${high}H${round(x1)}`;
        down = `L${round(x1)} ${low}H${round(x0)}${down}`;
      });
      return svg("path", { d: `${up}${down}Z`, fill: categoryColour(name), "data-category": name });
    });
  }

  rectangles() {
    const { first, last, offset, bytes, category } = this.stack.timeline.buffers;
    const from = this.instructionAt(this.range[0]), to = this.instructionAt(this.range[1] - 1e-9);
    const shapes = [];
    for (let b = 0; b < bytes.length; ++b) {
      if (offset[b] < 0 || last[b] < from || first[b] > to || bytes[b] === 0) continue;
      const x0 = this.x(this.position(first[b])), x1 = this.x(this.position(last[b] + 1));
      const y0 = this.y(offset[b]), y1 = this.y(offset[b] + bytes[b]);
      if (y0 - y1 < 0.3 || x1 - x0 < 0.3) continue; // not to be seen
      shapes.push(svg("rect", {
        class: "buffer", x: round(x0), y: round(y1), width: round(x1 - x0), height: round(y0 - y1),
        fill: categoryColour(this.stack.timeline.categories[category[b]]),
      }));
    }
    return shapes;
  }

  // What the instructions do, as a strip under the chart.
  phases() {
    const { phase } = this.stack.timeline.instructions, y = this.height - this.margin.bottom + 5;
    const strip = svg("g", { class: "phases", "clip-path": "url(#plot)" });
    const from = this.instructionAt(this.range[0]), to = this.instructionAt(this.range[1] - 1e-9);
    for (let i = from; i <= to;) {
      let next = i + 1;
      while (next <= to && phase[next] === phase[i]) ++next;
      const x0 = this.x(this.position(i)), x1 = this.x(this.position(next));
      strip.append(svg("rect", { class: `phase-${phase[i]}`, x: round(x0), y, width: round(Math.max(0.5, x1 - x0)), height: 6 }));
      i = next;
    }
    return strip;
  }

  axisBelow() {
    const y = this.height - this.margin.bottom, middle = (this.margin.left + this.width - this.margin.right) / 2;
    const label = (value) => (this.axis === "time" ? tickMs(value) : formatCount(value));
    const marks = ticks(this.range[0], this.range[1], Math.max(2, this.width / 130))
      .filter((value) => this.axis === "time" || Number.isInteger(value));
    return svg("g", { class: "axis" },
      marks.map((value) => svg("text", { x: round(this.x(value)), y: y + 26, "text-anchor": "middle" }, label(value))),
      svg("text", { class: "axis-title", x: middle, y: y + 46, "text-anchor": "middle" },
        this.axis === "time" ? "time in the step" : "instruction"));
  }

  peak() {
    const i = this.stack.timeline.peak_instruction;
    const x = this.x((this.position(i) + this.position(i + 1)) / 2);
    if (x < this.margin.left - 1 || x > this.width - this.margin.right + 1) return "";
    const y = this.y(this.stack.total[i]), text = `peak ${formatBytes(this.stack.timeline.peak_bytes)}`;
    const before = x + textWidth(text) + 30 > this.width;
    return svg("g", { class: "peak" },
      svg("line", { x1: round(x), x2: round(x), y1: round(y), y2: this.height - this.margin.bottom }),
      svg("circle", { cx: round(x), cy: round(y), r: 4 }),
      svg("text", { x: round(x + (before ? -10 : 10)), y: round(y) - 8, "text-anchor": before ? "end" : "start" }, text));
  }

  // The tensor under the cursor, over its whole life.
  drawMark() {
    this.mark.replaceChildren();
    if (!this.cursor) return;
    const { i, buffer } = this.cursor, { top, bottom } = this.margin;
    const x = this.x((this.position(i) + this.position(i + 1)) / 2);
    this.mark.append(svg("line", { class: "cursor", x1: round(x), x2: round(x), y1: top, y2: this.height - bottom }));
    if (buffer === undefined) return;
    const { first, last, bytes, offset } = this.stack.timeline.buffers;
    const bases = this.view === "arena"
      ? new Float64Array(last[buffer] - first[buffer] + 1).fill(offset[buffer]) : this.stack.bases(buffer);
    let up = "", down = "";
    bases.forEach((base, k) => {
      const x0 = round(this.x(this.position(first[buffer] + k))), x1 = round(this.x(this.position(first[buffer] + k + 1)));
      up += `${k ? "L" : "M"}${x0} ${round(this.y(base + bytes[buffer]))}H${x1}`;
      down = `L${x1} ${round(this.y(base))}H${x0}${down}`;
    });
    this.mark.append(svg("path", { class: "tensor", d: `${up}${down}Z` }));
  }

  // The buffer at a place of the chart.
  bufferAt(i, height) {
    if (this.view === "stack") return this.stack.at(i, height);
    const { first, last, offset, bytes } = this.stack.timeline.buffers;
    for (let b = 0; b < bytes.length; ++b)
      if (first[b] <= i && i <= last[b] && offset[b] >= 0 && offset[b] <= height && height < offset[b] + bytes[b]) return b;
    return undefined;
  }

  point(event) {
    const box = this.node.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  setCursor(i, buffer, x, y) {
    this.cursor = { i, buffer };
    this.drawMark();
    const moment = [[`instruction ${i}: ${this.stack.instruction(i)}`, "tip-moment"], [`${formatBytes(this.stack.total[i])} alive`]];
    showTip(buffer === undefined ? moment : this.stack.describe(buffer, i), x, y);
  }
  clearCursor() {
    this.cursor = null;
    this.drawMark();
    hideTip();
  }

  listen() {
    let dragFrom = null;
    const inside = ({ x }) => x >= this.margin.left && x <= this.width - this.margin.right;
    this.node.addEventListener("pointermove", (event) => {
      const at = this.point(event);
      if (dragFrom !== null) {
        const to = Math.max(this.margin.left, Math.min(at.x, this.width - this.margin.right));
        this.selection.setAttribute("x", Math.min(dragFrom, to));
        this.selection.setAttribute("width", Math.abs(to - dragFrom));
        return hideTip();
      }
      if (!inside(at)) return this.clearCursor();
      const i = this.instructionAt(this.x.invert(at.x));
      this.setCursor(i, this.bufferAt(i, this.y.invert(at.y)), event.clientX, event.clientY);
    });
    this.node.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !inside(this.point(event))) return;
      dragFrom = this.point(event).x;
      this.node.setPointerCapture(event.pointerId);
    });
    this.node.addEventListener("pointerup", (event) => {
      if (dragFrom === null) return;
      const [from, to] = [dragFrom, this.point(event).x].sort((a, b) => a - b).map((x) => this.x.invert(x));
      const wide = Math.abs(this.point(event).x - dragFrom) > 6;
      dragFrom = null;
      this.selection.setAttribute("width", 0);
      if (wide) this.moveTo(Math.max(0, from), Math.min(to, this.end()) - Math.max(0, from));
    });
    this.node.addEventListener("pointerleave", () => dragFrom === null && this.clearCursor());
    this.node.addEventListener("blur", () => this.clearCursor());
    this.node.addEventListener("dblclick", () => this.reset());
    this.node.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls as ever
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.x.invert(this.point(event).x));
    }, { passive: false });
    window.addEventListener("beforeprint", () => this.clearCursor());
    this.node.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const { stack } = this, many = event.shiftKey ? 10 : 1;
    const i = this.cursor?.i ?? stack.timeline.peak_instruction;
    const actions = {
      ArrowRight: () => this.keyTo(i + many), ArrowLeft: () => this.keyTo(i - many),
      ArrowUp: () => this.keyStack(i, 1), ArrowDown: () => this.keyStack(i, -1),
      Home: () => this.keyTo(0), End: () => this.keyTo(stack.count - 1),
      p: () => this.keyTo(stack.timeline.peak_instruction),
      "+": () => this.zoom(0.5, this.position(i)), "=": () => this.zoom(0.5, this.position(i)),
      "-": () => this.zoom(2, this.position(i)),
      0: () => this.reset(), Escape: () => this.clearCursor(),
      "[": () => this.onRow(-1), "]": () => this.onRow(1),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  // Moves the cursor by keyboard; the tooltip goes where a mouse would be.
  keyTo(i, buffer) {
    const at = Math.max(0, Math.min(this.stack.count - 1, i)), box = this.node.getBoundingClientRect();
    const length = this.range[1] - this.range[0];
    if (this.position(at) < this.range[0] || this.position(at + 1) > this.range[1]) this.moveTo(this.position(at) - length / 2, length);
    const largest = () => this.stack.alive(at).reduce((best, { buffer: b }) =>
      best === undefined || this.stack.timeline.buffers.bytes[b] > this.stack.timeline.buffers.bytes[best] ? b : best, undefined);
    this.setCursor(at, buffer ?? largest(), box.left + this.x(this.position(at)), box.top + this.height / 3);
  }
  keyStack(i, direction) {
    const alive = this.stack.alive(i).map(({ buffer }) => buffer);
    const at = alive.indexOf(this.cursor?.buffer);
    this.keyTo(i, alive[Math.max(0, Math.min(alive.length - 1, at < 0 ? 0 : at + direction))]);
  }
}

// A small picture of a row on a scale shared by all.
function thumbnail(name, most, width = 200, height = 64) {
  const stack = stackOf(name), columns = Math.min(100, stack.count), base = new Float64Array(columns);
  const picked = Array.from({ length: columns }, (_, k) => {
    let best = Math.floor((k * stack.count) / columns);
    for (let i = best; i < Math.floor(((k + 1) * stack.count) / columns); ++i) if (stack.total[i] > stack.total[best]) best = i;
    return best;
  });
  const x = linear(0, columns, 0, width), y = linear(0, most, height, 0);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    categoryOrder.map((category, c) => {
      if (!stack.used.includes(category)) return null;
      let up = "", down = "";
      picked.forEach((i, k) => {
        const low = round(y(base[k]));
        base[k] += stack.live[c][i];
        up += `${k ? "L" : "M"}${round(x(k))} ${round(y(base[k]))}H${round(x(k + 1))}`;
        down = `L${round(x(k + 1))} ${low}H${round(x(k))}${down}`;
      });
      return svg("path", { d: `${up}${down}Z`, fill: categoryColour(category) });
    }));
}
