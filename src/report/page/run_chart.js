// Curves of one figure of the runs over steps or time: training as lines, tests as dashes with points.
class RunChart {
  // `curves`: [{run, test, name, each, steps, values, seconds}]; `text` writes a value; with `cut`, the axis ends at
  // twice what nine in ten values stay below.
  constructor(host, { label, curves, along = "step", cut = false, text = (value) => String(Number(value.toPrecision(6))) }) {
    Object.assign(this, { host, curves, along, cut, text, axis: "steps", log: false, hidden: new Set() });
    this.node = svg("svg", { class: "run-chart", tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": label });
    host.append(this.node);
    this.margin = { left: 62, right: 18, top: 12, bottom: 44 };
    for (const kind of ["pointermove", "pointerdown"]) this.node.addEventListener(kind, (event) => this.tell(this.nearest(event), event.clientX, event.clientY));
    this.node.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && this.clear());
    this.node.addEventListener("blur", () => this.clear());
    this.node.addEventListener("keydown", (event) => this.keyDown(event));
    onWidth(host, (width) => {
      this.width = width;
      this.draw();
    });
  }

  set(options) {
    Object.assign(this, options);
    if (this.width) this.draw();
  }
  get byTime() {
    return this.axis === "time" && this.curves.every((curve) => curve.seconds);
  }
  places(curve) {
    return this.byTime ? curve.seconds : curve.steps;
  }
  shown() {
    return this.curves.filter((curve) => !this.hidden.has(curve.run));
  }

  draw() {
    this.clear();
    const { left, right, top, bottom } = this.margin, width = this.width, height = width < 500 ? 210 : 250;
    const curves = this.shown(), drawable = (value) => value !== null && (!this.log || value > 0);
    const values = curves.flatMap((curve) => curve.values).filter(drawable), places = curves.flatMap((curve) => this.places(curve));
    for (const [name, value] of [["width", width], ["height", height], ["viewBox", `0 0 ${width} ${height}`]]) this.node.setAttribute(name, value);
    this.positions = [...new Set(places)].sort((a, b) => a - b);
    if (!values.length) {
      this.positions = [];
      this.node.replaceChildren(svg("g", { class: "axis" }, svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" },
        curves.length ? "no value that can be drawn" : "no run is shown")));
      return;
    }
    const scaled = this.log ? Math.log10 : (value) => value;
    const most = this.cut ? 2 * [...values].sort((a, b) => a - b)[Math.floor(0.9 * (values.length - 1))] : Infinity;
    const [low, high] = [Math.min(...values.map(scaled)), Math.min(scaled(most), Math.max(...values.map(scaled)))], pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    // What is never negative has no axis below 0.
    const floor = !this.log && low >= 0 ? Math.max(0, low - pad) : low - pad;
    const up = linear(floor, high + pad, height - bottom, top);
    this.y = (value) => up(scaled(Math.min(value, most)));
    const [first, last] = [this.positions[0], this.positions.at(-1)];
    this.x = linear(first, last > first ? last : first + 1, left, width - right);
    const path = (curve) => curve.values.map((value, k) => (drawable(value)
      ? `${k && drawable(curve.values[k - 1]) ? "L" : "M"}${round(this.x(this.places(curve)[k]))} ${round(this.y(value))}` : "")).join("");
    const rises = this.log ? logTicks(low - pad, high + pad) : axisTicks(floor, high + pad, 4);
    this.cursor = svg("g");
    this.node.replaceChildren(
      svg("g", { class: "axis" },
        rises.map((value) => [
          svg("line", { x1: left, x2: width - right, y1: round(this.y(value)), y2: round(this.y(value)) }),
          svg("text", { x: left - 8, y: round(this.y(value)) + 4, "text-anchor": "end" }, this.text(value, true))]),
        axisTicks(first, last, Math.max(2, Math.min(8, width / 110)), !this.byTime).map((place) =>
          svg("text", { x: round(this.x(place)), y: height - bottom + 18, "text-anchor": "middle" }, this.placeText(place))),
        svg("text", { class: "axis-title", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" },
          this.byTime ? "time in steps" : this.along)),
      ...curves.map((curve) => svg("g", { class: `run-curve ${colourOf(curve.colour ?? curve.run)}${curve.test ? " test" : ""}` },
        svg("path", { d: path(curve) }),
        curve.values.length <= (curve.test ? 80 : 1) || curve.dots
          ? curve.values.map((value, k) => drawable(value) && svg("circle", { r: 3, cx: round(this.x(this.places(curve)[k])), cy: round(this.y(value)) })) : null)),
      this.cursor);
  }

  placeText(place) {
    if (!this.byTime) return formatCount(place);
    return place < 120 ? `${Number(place.toPrecision(4))} s` : `${Number((place / 60).toPrecision(4))} min`;
  }
  nearest(event) {
    const at = this.x ? this.x.invert(event.clientX - this.node.getBoundingClientRect().left) : 0;
    let best = 0;
    this.positions.forEach((place, k) => Math.abs(place - at) < Math.abs(this.positions[best] - at) && (best = k));
    return best;
  }
  // The values beside the k-th place that some curve has a point at.
  tell(k, clientX, clientY) {
    const place = this.positions[k];
    if (place === undefined) return;
    this.at = k;
    const box = this.node.getBoundingClientRect(), x = round(this.x(place));
    const lines = [], points = [];
    for (const curve of this.shown()) {
      const places = this.places(curve);
      let near = -1;
      places.forEach((each, i) => each <= place && (near = i)); // the newest value until then
      if (near < 0) continue;
      const value = curve.values[near], number = value === null ? "not finite" : this.text(value);
      const other = places[near] !== place ? `, at ${this.placeText(places[near])}` : "";
      lines.push([`${curve.name}: ${number}${curve.each > 1 ? `, the mean of ${curve.each} steps` : ""}${other}`]);
      if (value !== null && (!this.log || value > 0))
        points.push(svg("circle", { class: `cursor-point ${colourOf(curve.colour ?? curve.run)}`, r: 4, cx: round(this.x(places[near])), cy: round(this.y(value)) }));
    }
    this.cursor.replaceChildren(svg("line", { class: "cursor", x1: x, x2: x, y1: this.margin.top, y2: box.height - this.margin.bottom }), ...points);
    showTip([[this.byTime ? `after ${this.placeText(place)}` : `${this.along} ${this.placeText(place)}`, "tip-title"], ...lines.slice(0, 16)],
      clientX ?? box.left + x, clientY ?? box.top + 60);
  }
  clear() {
    this.cursor?.replaceChildren();
    this.at = null;
    hideTip();
  }
  keyDown(event) {
    if (event.key === "Escape") this.clear();
    const last = (this.positions?.length ?? 0) - 1, at = this.at ?? null;
    const to = { ArrowLeft: (at ?? 1) - 1, ArrowRight: (at ?? -1) + 1, PageUp: (at ?? 0) - 10, PageDown: (at ?? 0) + 10, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.tell(Math.max(0, Math.min(last, to)));
  }
}

// 1, 2 and 5 times powers of ten within 10^low to 10^high; fewer where there are many.
function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(low); power <= high; ++power)
    for (const factor of high - low > 3 ? [1] : high - low > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 5, 7]) {
      const value = factor * 10 ** power;
      if (Math.log10(value) >= low && Math.log10(value) <= high) found.push(Number(value.toPrecision(6)));
    }
  return found.length > 1 ? found : ticks(10 ** low, 10 ** high, 4).filter((value) => value > 0);
}
