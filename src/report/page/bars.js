// The rows as sorted bars: memory at the peak by category, and time.
class Bars {
  constructor(host, { onPick }) {
    this.onPick = onPick;
    this.sort = "memory";
    this.mostBytes = Math.max(...rows.map((row) => Math.max(row.planned_peak_bytes, row.measured_peak_bytes)));
    this.mostMs = Math.max(...rows.map((row) => Math.max(row.step_ms.high, row.predicted_step_ms ?? 0)));
    this.bytes = bytesLike(this.mostBytes);
    this.ms = msLike(this.mostMs);
    this.body = html("tbody");
    this.buttons = [["memory", "memory"], ["time", "time"], ["study", "order of the study"]].map(([key, label]) =>
      html("button", { type: "button", "data-sort": key, onclick: () => this.sortBy(key) }, label));
    const losses = rows.some((row) => row.loss !== undefined);
    host.append(
      html("div", { class: "toolbar" }, html("span", { class: "label" }, "Sort by"), html("div", { class: "segmented" }, this.buttons),
        legend(categoryOrder.filter((name) => rows.some((row) => row.planned_by_category[name] > 0)))),
      html("div", { class: "strip-key marks" },
        html("span", {}, html("span", { class: "swatch tick-measured" }), "measured memory"),
        html("span", {}, html("span", { class: "swatch time-swatch" }), "measured time, median"),
        html("span", {}, html("span", { class: "swatch spread-swatch" }), "fastest and slowest run"),
        html("span", {}, html("span", { class: "swatch tick-predicted" }), "time the plan predicted"),
        rows.some(sameLosses) ? html("span", {}, html("span", { class: "same-key" }, "="), "the baseline's losses, to the bit") : null),
      scrolling("Memory and time of every row", html("table", { class: "bars" },
        html("thead", {}, html("tr", {},
          html("th", { scope: "col" }, "Technique"), html("th", { scope: "col", colspan: 3 }, "Peak memory"),
          html("th", { scope: "col", colspan: 3 }, "Time a step"), html("th", { scope: "col", class: "number" }, "Predicted"), losses ? html("th", { scope: "col", class: "number" }, "Loss") : null)),
        this.body)));
    this.losses = losses;
    this.sortBy("memory");
  }

  sortBy(key) {
    this.sort = key;
    for (const button of this.buttons) button.setAttribute("aria-pressed", button.dataset.sort === key);
    const value = { memory: (row) => row.planned_peak_bytes, time: (row) => row.step_ms.median, study: (row) => rows.indexOf(row) }[key];
    this.body.replaceChildren(...[...rows].sort((a, b) => value(a) - value(b)).map((row) => this.line(row)),
      ...failed.map((row) => html("tr", { class: "failed" }, html("th", { scope: "row" }, title(row)),
        html("td", { colspan: this.losses ? 8 : 7 }, row.error))));
    this.select(this.selected);
  }

  select(name) {
    this.selected = name;
    for (const line of this.body.children) line.classList.toggle("selected", line.dataset.row === name);
  }

  line(row) {
    const memory = row.memory_ratio === undefined ? "" : formatRatio(row.memory_ratio);
    const time = row.time_ratio === undefined ? "" : formatRatio(row.time_ratio);
    return html("tr", { "data-row": row.name, onclick: () => this.onPick(row.name) },
      html("th", { scope: "row" }, html("button", { type: "button", class: "row-name", title: `Show the memory of ${row.name}` }, title(row))),
      html("td", { class: "bar" }, this.memoryBar(row)),
      html("td", { class: "number" }, this.bytes(row.planned_peak_bytes)), html("td", { class: "number ratio" }, memory),
      html("td", { class: "bar" }, this.timeBar(row)),
      html("td", { class: "number" }, this.ms(row.step_ms.median)), html("td", { class: "number ratio" }, time),
      html("td", { class: "number quiet-text" }, row.predicted_step_ms === undefined ? "" : this.ms(row.predicted_step_ms)),
      this.losses ? html("td", { class: "number" }, Number.isFinite(row.loss) ? row.loss.toFixed(4) : "not a number",
        html("span", { class: "same", title: sameLosses(row) ? "The same losses as the baseline, to the bit" : null }, sameLosses(row) ? "=" : "")) : null);
  }

  memoryBar(row) {
    let at = 0;
    const share = (bytes) => (100 * bytes) / this.mostBytes;
    const parts = categoryOrder.filter((name) => row.planned_by_category[name] > 0).map((name) => {
      const bytes = row.planned_by_category[name];
      const part = svg("rect", { x: `${round(share(at))}%`, y: 3, width: `${round(share(bytes))}%`, height: 14, fill: categoryColour(name) });
      part.append(svg("title", {}, `${categoryLabels[name]}: ${formatBytes(bytes)}`));
      at += bytes;
      return part;
    });
    const measured = svg("rect", { class: "measured", x: `calc(${round(share(row.measured_peak_bytes))}% - 1px)`, y: 0, width: 2, height: 20 },
      svg("title", {}, `measured: ${formatBytes(row.measured_peak_bytes)}`));
    return svg("svg", { width: "100%", height: 20, role: "img", "aria-label": `planned ${formatBytes(row.planned_peak_bytes)}, measured ${formatBytes(row.measured_peak_bytes)}` },
      parts, measured);
  }

  timeBar(row) {
    const { median, low, high, runs } = row.step_ms, share = (ms) => `${round((100 * ms) / this.mostMs)}%`;
    return svg("svg", { width: "100%", height: 20, role: "img", "aria-label": `median ${formatMs(median)}, from ${formatMs(low)} to ${formatMs(high)}` },
      svg("rect", { class: "time", x: 0, y: 3, width: share(median), height: 14 },
        svg("title", {}, `median of ${runs.length} runs ${formatMs(median)}, from ${formatMs(low)} to ${formatMs(high)}`)),
      runs.length > 1 ? [svg("line", { class: "spread", x1: share(low), x2: share(high), y1: 10, y2: 10 }),
        svg("line", { class: "spread", x1: share(low), x2: share(low), y1: 6, y2: 14 }),
        svg("line", { class: "spread", x1: share(high), x2: share(high), y1: 6, y2: 14 })] : null,
      row.predicted_step_ms === undefined ? null : svg("line", { class: "predicted", x1: share(row.predicted_step_ms), x2: share(row.predicted_step_ms), y1: 1, y2: 19 },
        svg("title", {}, `predicted ${formatMs(row.predicted_step_ms)}`)));
  }
}
