// The memory of a step over its instructions: stacked by category, or as buffers lie in the arena.
class TimelineChart {
  constructor(host, { onRow }) {
    this.host = host;
    this.onRow = onRow;
    this.view = "stack"; // or "arena"
    this.axis = "instructions"; // or "time"
    this.margin = { left: 76, right: 18, top: 30, bottom: 52 };
    this.node = svg("svg", {
      class: "timeline", tabindex: 0, role: "application",
      "aria-roledescription": "chart", "aria-describedby": "timeline-keys",
    });
    host.append(this.node);
    this.listen();
    onWidth(host, (width) => {
      this.width = width;
      if (this.stack) this.draw();
    });
  }

  show(name) {
    this.stack = stackOf(name);
    this.budget = rowNamed(name)?.budget_bytes;
    this.starts = this.stack.clock();
    const { ms, measured_ms, lane } = this.stack.timeline.instructions;
    this.predictedEnd = measured_ms.length && !lane ? ms.reduce((sum, each) => sum + each, 0) : 0;
    this.cursor = this.found = null;
    this.range = [0, this.end()];
    this.node.setAttribute("aria-label",
      `Memory of ${name} over ${this.stack.count} instructions; peak ${formatBytes(this.stack.most)}`);
    if (this.width) this.draw();
  }
  // Lays the memory of another row over this one.
  compare(name) {
    this.compared = name ? stackOf(name) : null;
    this.range = [0, this.end()];
    if (this.width) this.draw();
  }
  // Marks a tensor until another is found.
  find(buffer) {
    this.found = buffer ?? null;
    if (buffer === undefined) return this.draw();
    const { first, last } = this.stack.timeline.buffers, middle = first[buffer] + ((last[buffer] - first[buffer]) >> 1);
    if (this.view === "arena" && this.stack.timeline.buffers.offset[buffer] < 0) this.view = "stack";
    this.draw();
    this.keyTo(Math.max(first[buffer], Math.min(middle, last[buffer])), buffer);
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
    if (this.axis !== "time") return this.stack.count;
    // Predicted kernels, and the row that is compared, may take longer.
    return Math.max(this.starts[this.stack.count], this.predictedEnd, this.compared?.clock().at(-1) ?? 0);
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
    const { stack, margin } = this, phone = this.width < 500;
    this.rows = laneRows(stack, this.axis);
    this.tiers = stack.timeline.tiers ?? [];
    margin.left = phone ? 64 : 76;
    margin.right = phone ? 8 : 18;
    margin.bottom = 6 + this.rows.length * laneHeight + this.tiers.length * tierHeight + 46;
    this.height = margin.top + (phone ? 240 : 310) + margin.bottom;
    const { left, right, top, bottom } = margin;
    this.node.setAttribute("width", this.width);
    this.node.setAttribute("height", this.height);
    this.node.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.x = linear(this.range[0], this.range[1], left, this.width - right);
    const most = this.view === "arena" ? Math.max(1, stack.timeline.arena_bytes) : Math.max(stack.most, this.compared?.most ?? 0);
    this.showsBudget = this.view === "stack" && this.budget > 0 && this.budget <= 1.5 * most;
    this.most = this.showsBudget ? Math.max(most, this.budget) : most;
    this.y = linear(0, this.most * 1.04, this.height - bottom, top);
    const clip = svg("clipPath", { id: "plot" }, svg("rect", {
      x: left, y: 0, width: Math.max(0, this.width - left - right), height: this.height,
    }));
    const hatch = svg("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect", { class: "hatch-ground", width: 5, height: 5 }), svg("rect", { class: "hatch-line", width: 2.2, height: 5 }));
    this.mark = svg("g", { class: "mark", "clip-path": "url(#plot)" });
    this.selection = svg("rect", { class: "selection", y: top, height: this.height - bottom - top, width: 0 });
    this.node.replaceChildren(
      svg("defs", {}, clip, hatch),
      byteAxis(this.y, 0, this.most, left, this.width - right, phone ? 4 : 6),
      svg("g", { "clip-path": "url(#plot)" }, this.view === "arena" ? this.rectangles() : this.areas(), this.over()),
      this.budgetLine(), this.lanes(), this.axisBelow(), this.view === "stack" ? this.peak() : "", this.mark, this.selection);
    this.drawMark();
  }

  // The other row's memory as a line. Over instructions it is stretched to the same length; over time it is not.
  over() {
    if (!this.compared || this.view !== "stack") return null;
    const clock = this.compared.clock(), count = this.compared.count, own = this.stack.count;
    const at = (i) => this.x(this.axis === "time" ? clock[i] : (i * own) / count);
    let line = "", x0 = null, most = 0;
    for (let i = 0; i < count; ++i) {
      x0 ??= at(i);
      most = Math.max(most, this.compared.total[i]);
      if (at(i + 1) - x0 < 0.75 && i + 1 < count) continue;
      line += `${line ? "L" : "M"}${round(x0)} ${round(this.y(most))}H${round(at(i + 1))}`;
      x0 = null;
      most = 0;
    }
    return svg("path", { class: "over", d: line });
  }

  budgetLine() {
    if (!this.showsBudget) return "";
    const y = round(this.y(this.budget));
    return svg("line", { class: "budget", x1: this.margin.left, x2: this.width - this.margin.right, y1: y, y2: y });
  }

  // Kernels and copies by lane, and the bytes of other tiers, on the same axis.
  lanes() {
    const top = this.height - this.margin.bottom + 6, left = this.margin.left - 8;
    const tiersTop = top + this.rows.length * laneHeight;
    return svg("g", {},
      svg("g", { "clip-path": "url(#plot)" }, this.rows.map((row, k) => drawLane(this, row, top + k * laneHeight))),
      this.rows.map((row, k) => svg("text", { class: "lane-name", x: left, y: top + k * laneHeight + 14, "text-anchor": "end" }, row.name)),
      this.tiers.map((tier, k) => drawTier(this, tier, tiersTop + k * tierHeight)));
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

  axisBelow() {
    const y = this.height - 46, middle = (this.margin.left + this.width - this.margin.right) / 2;
    const label = (value) => (this.axis === "time" ? tickMs(value) : formatCount(value));
    const inside = (value) => {
      const half = textWidth(label(value)) / 2, x = this.x(value);
      return x - half >= 0 && x + half <= this.width;
    };
    const marks = axisTicks(this.range[0], this.range[1], Math.max(2, this.width / 130), this.axis !== "time").filter(inside);
    return svg("g", { class: "axis" },
      marks.map((value) => svg("text", { x: round(this.x(value)), y: y + 16, "text-anchor": "middle" }, label(value))),
      svg("text", { class: "axis-title", x: middle, y: y + 36, "text-anchor": "middle" },
        this.axis === "time" ? "time in the step" : "instruction"));
  }

  peak() {
    const i = this.stack.timeline.peak_instruction;
    const x = this.x((this.position(i) + this.position(i + 1)) / 2);
    if (x < this.margin.left - 1 || x > this.width - this.margin.right + 1) return "";
    const y = this.y(this.stack.total[i]), text = `peak ${bytesLike(this.most)(this.stack.timeline.peak_bytes)}`;
    // Above the line of the budget, where that is close.
    const line = this.showsBudget ? this.y(this.budget) : Infinity, label = line <= y && y - line < 24 ? line - 6 : y - 8;
    const before = x + textWidth(text) + 30 > this.width;
    return svg("g", { class: "peak" },
      svg("line", { x1: round(x), x2: round(x), y1: round(y), y2: this.height - this.margin.bottom }),
      svg("circle", { cx: round(x), cy: round(y), r: 4 }),
      svg("text", { x: round(x + (before ? -10 : 10)), y: round(label), "text-anchor": before ? "end" : "start" }, text));
  }

  // The tensor under the cursor, over its whole life.
  drawMark() {
    this.mark.replaceChildren();
    if (this.found !== null && this.found !== undefined && this.found !== this.cursor?.buffer) this.outline(this.found, "tensor found-tensor");
    if (!this.cursor) return;
    const { i, buffer } = this.cursor;
    const x = this.x((this.position(i) + this.position(i + 1)) / 2);
    this.mark.append(svg("line", { class: "cursor", x1: round(x), x2: round(x), y1: this.margin.top, y2: this.height - 46 }));
    if (buffer !== undefined) this.outline(buffer, "tensor");
  }
  outline(buffer, kind) {
    const { first, last, bytes, offset } = this.stack.timeline.buffers;
    const bases = this.view === "arena"
      ? new Float64Array(last[buffer] - first[buffer] + 1).fill(Math.max(0, offset[buffer])) : this.stack.bases(buffer);
    let up = "", down = "";
    bases.forEach((base, k) => {
      const x0 = round(this.x(this.position(first[buffer] + k))), x1 = round(this.x(this.position(first[buffer] + k + 1)));
      up += `${k ? "L" : "M"}${x0} ${round(this.y(base + bytes[buffer]))}H${x1}`;
      down = `L${x1} ${round(this.y(base))}H${x0}${down}`;
    });
    this.mark.append(svg("path", { class: kind, d: `${up}${down}Z` }));
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

  // What is told of a place below the memory: a kernel, a copy, or a tier's bytes.
  tellBelow(at, event) {
    const below = at.y - (this.height - this.margin.bottom + 6), position = this.x.invert(at.x);
    const row = this.rows[Math.floor(below / laneHeight)];
    const tier = row ? undefined : this.tiers[Math.floor((below - this.rows.length * laneHeight) / tierHeight)];
    const i = row ? inLane(this, row, position) : this.instructionAt(position);
    if (i === undefined || (!row && !tier)) return this.clearCursor();
    this.cursor = { i };
    this.drawMark();
    showTip(row ? this.stack.describeKernel(i) : [
      [`${tier.name}: ${formatBytes(tier.live[i])} in use`, "tip-title"],
      [`of ${formatBytes(tier.held_bytes)} held; a step fetches ${formatBytes(tier.fetched_bytes)} and stores ${formatBytes(tier.stored_bytes)}`],
      [`instruction ${i}: ${this.stack.instruction(i)}`, "tip-moment"],
    ], event.clientX, event.clientY);
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
    const tell = (at, event) => {
      if (!inside(at)) return this.clearCursor();
      if (at.y > this.height - this.margin.bottom + 4) return this.tellBelow(at, event);
      const i = this.instructionAt(this.x.invert(at.x));
      this.setCursor(i, this.bufferAt(i, this.y.invert(at.y)), event.clientX, event.clientY);
    };
    this.node.addEventListener("pointermove", (event) => {
      const at = this.point(event);
      if (dragFrom !== null) {
        const to = Math.max(this.margin.left, Math.min(at.x, this.width - this.margin.right));
        this.selection.setAttribute("x", Math.min(dragFrom, to));
        this.selection.setAttribute("width", Math.abs(to - dragFrom));
        return hideTip();
      }
      tell(at, event);
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
      else tell(this.point(event), event); // a tap, which no movement came before
    });
    this.node.addEventListener("pointercancel", () => {
      dragFrom = null; // the page is being scrolled instead
      this.selection.setAttribute("width", 0);
    });
    // A finger that is lifted leaves what it pointed at.
    this.node.addEventListener("pointerleave", (event) => dragFrom === null && event.pointerType !== "touch" && this.clearCursor());
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
      k: () => this.keyKernel(i),
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
  // Tells of the kernel at the cursor instead of the tensor.
  keyKernel(i) {
    this.keyTo(i);
    const box = this.node.getBoundingClientRect();
    showTip(this.stack.describeKernel(i), box.left + this.x(this.position(i)), box.bottom - this.margin.bottom);
  }
  keyStack(i, direction) {
    const alive = this.stack.alive(i).map(({ buffer }) => buffer);
    const at = alive.indexOf(this.cursor?.buffer);
    this.keyTo(i, alive[Math.max(0, Math.min(alive.length - 1, at < 0 ? 0 : at + direction))]);
  }
}
