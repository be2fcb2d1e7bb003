// The loss over the steps: the chosen row, the one compared with it, and all others behind them.
class LossChart {
  constructor(host) {
    this.host = host;
    this.node = svg("svg", { class: "losses", tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": "Loss over the steps" });
    this.key = html("div", { class: "strip-key" });
    host.append(this.key, this.node);
    this.margin = { left: 60, right: 16, top: 12, bottom: 44 };
    for (const kind of ["pointermove", "pointerdown"]) this.node.addEventListener(kind, (event) => this.tell(this.stepAt(event), event.clientX, event.clientY));
    this.node.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && this.clear());
    this.node.addEventListener("blur", () => this.clear());
    this.node.addEventListener("keydown", (event) => this.keyDown(event));
    onWidth(host, (width) => {
      this.width = width;
      this.draw();
    });
  }

  show(name, compared) {
    this.chosen = name;
    this.compared = compared;
    if (this.width) this.draw();
  }
  all() {
    const own = rows.map((row) => ({ name: row.name, losses: row.losses }));
    const others = (other?.rows ?? []).map((row) => ({ name: otherPrefix + row.name, losses: row.losses }));
    return [...own, ...others].filter((line) => line.losses?.length > 1);
  }

  draw() {
    const lines = this.all(), { left, right, top, bottom } = this.margin, height = this.width < 500 ? 220 : 280;
    const finite = lines.flatMap((line) => line.losses).filter(Number.isFinite);
    this.host.parentElement.hidden = !finite.length;
    if (!finite.length) return;
    this.steps = Math.max(...lines.map((line) => line.losses.length));
    const [low, high] = [Math.min(...finite), Math.max(...finite)], pad = (high - low || Math.abs(high) || 1) * 0.06;
    this.x = linear(1, this.steps, left, this.width - right);
    const y = linear(low - pad, high + pad, height - bottom, top);
    for (const [name, value] of [["width", this.width], ["height", height], ["viewBox", `0 0 ${this.width} ${height}`]]) this.node.setAttribute(name, value);
    const kind = (name) => (name === this.chosen ? "chosen" : name === this.compared ? "compared" : "behind");
    const order = ["behind", "chosen", "compared"]; // a dashed line lets the one below it through
    const path = (losses) => losses.map((loss, k) => (Number.isFinite(loss) ? `${k && Number.isFinite(losses[k - 1]) ? "L" : "M"}${round(this.x(k + 1))} ${round(y(loss))}` : "")).join("");
    this.cursor = svg("g");
    this.node.replaceChildren(
      svg("g", { class: "axis" },
        axisTicks(y.invert(height - bottom), y.invert(top), 4).map((loss) => [
          svg("line", { x1: left, x2: this.width - right, y1: round(y(loss)), y2: round(y(loss)) }),
          svg("text", { x: left - 8, y: round(y(loss)) + 4, "text-anchor": "end" }, String(Number(loss.toPrecision(5))))]),
        axisTicks(1, this.steps, Math.max(2, this.width / 110), true).map((step) =>
          svg("text", { x: round(this.x(step)), y: height - bottom + 18, "text-anchor": "middle" }, formatCount(step))),
        svg("text", { class: "axis-title", x: (left + this.width - right) / 2, y: height - 6, "text-anchor": "middle" }, "step")),
      ...lines.sort((a, b) => order.indexOf(kind(a.name)) - order.indexOf(kind(b.name))).map((line) =>
        svg("path", { class: `loss ${kind(line.name)}`, "data-row": line.name, d: path(line.losses) })),
      this.cursor);
    this.key.replaceChildren(...[["chosen", this.chosen], ["compared", this.compared]].filter(([, name]) => name).map(([key, name]) =>
      html("span", {}, html("span", { class: `swatch line loss-${key}` }), titleOf(name))),
      lines.length > 2 ? html("span", {}, html("span", { class: "swatch line loss-behind" }), "the other rows") : "");
  }

  stepAt(event) {
    const box = this.node.getBoundingClientRect();
    return Math.max(1, Math.min(this.steps, Math.round(this.x.invert(event.clientX - box.left))));
  }
  tell(step, clientX, clientY) {
    this.step = step;
    const box = this.node.getBoundingClientRect(), x = round(this.x(step));
    this.cursor.replaceChildren(svg("line", { class: "cursor", x1: x, x2: x, y1: this.margin.top, y2: box.height - this.margin.bottom }));
    const told = [this.chosen, this.compared, baseline?.name].filter((name, k, names) => name && names.indexOf(name) === k);
    showTip([[`step ${formatCount(step)}`, "tip-title"], ...told.map((name) => [`${titleOf(name)}: ${this.value(name, step)}`])],
      clientX ?? box.left + x, clientY ?? box.top + 60);
  }
  value(name, step) {
    const loss = rowNamed(name)?.losses?.[step - 1];
    return loss === undefined ? "no such step" : Number.isFinite(loss) ? loss.toPrecision(6) : "not a number";
  }
  clear() {
    this.cursor?.replaceChildren();
    this.step = null;
    hideTip();
  }
  keyDown(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -this.steps, End: this.steps }[event.key];
    if (event.key === "Escape") this.clear();
    if (move === undefined) return;
    event.preventDefault();
    this.tell(Math.max(1, Math.min(this.steps, (this.step ?? (move > 0 ? 0 : 2)) + move)));
  }
}
