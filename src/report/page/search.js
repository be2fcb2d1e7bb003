// Finds tensors by module, line of source code, op, category or type.
class Search {
  constructor({ onFind }) {
    this.onFind = onFind;
    this.input = html("input", { type: "search", id: "find", placeholder: "attn, matmul, gpt2.cpp:57", autocomplete: "off", spellcheck: "false",
      "aria-controls": "found", oninput: () => this.update(), onkeydown: (event) => this.key(event) });
    this.list = html("ul", { id: "found", class: "found", hidden: true, onkeydown: (event) => this.keyInList(event) });
    this.count = html("span", { class: "label", role: "status" });
    this.node = html("div", { class: "search" }, html("label", { class: "chooser" }, "Find a tensor ", this.input), this.count, this.list);
  }

  show(stack) {
    this.stack = stack;
    const { path, op, type, category } = stack.timeline.buffers;
    this.texts = path.map((p, b) => [stack.place(p), stack.source(p), stack.names[op[b]], type ? stack.names[type[b]] : "", categoryLabels[stack.timeline.categories[category[b]]]]
      .join(" ").toLowerCase());
    this.update();
  }

  // All words must be there.
  matches() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean), { bytes } = this.stack.timeline.buffers;
    if (!words.length) return [];
    return this.texts.map((_, b) => b).filter((b) => bytes[b] > 0 && words.every((word) => this.texts[b].includes(word))).sort((a, b) => bytes[b] - bytes[a] || a - b);
  }

  update() {
    const found = this.matches(), most = 40, { path, op, type, category, bytes, first, last, offset } = this.stack.timeline.buffers;
    const like = bytesLike(bytes[found[0]] ?? 0);
    this.list.hidden = !found.length;
    const all = found.reduce((sum, b) => sum + bytes[b], 0);
    this.count.textContent = !this.input.value.trim() ? "" : !found.length ? "none has that name"
      : `${formatCount(found.length)} found, ${formatBytes(all)} in all${found.length > most ? `; the ${most} largest are shown` : ""}`;
    this.list.replaceChildren(...found.slice(0, most).map((b) => html("li", {}, html("button", { type: "button", "data-buffer": b, onclick: () => this.onFind(b) },
      html("span", { class: "swatch", style: `background:${categoryColour(this.stack.timeline.categories[category[b]])}` }),
      html("span", { class: "found-name" }, this.stack.place(path[b]),
        this.stack.source(path[b]) && html("span", { class: "found-source" }, this.stack.source(path[b]))),
      html("span", { class: "found-kind" }, `${this.stack.names[op[b]]}${type && this.stack.names[type[b]] ? `, ${this.stack.names[type[b]]}` : ""}, ${offset[b] < 0 ? "stays" : `instructions ${first[b]} to ${last[b]}`}`),
      html("span", { class: "found-bytes" }, like(bytes[b]))))));
  }

  key(event) {
    const first = this.list.querySelector("button");
    if (event.key === "Enter" && first) this.onFind(Number(first.dataset.buffer));
    else if (event.key === "ArrowDown" && first) first.focus();
    else if (event.key === "Escape") {
      this.input.value = "";
      this.update();
      this.onFind(undefined);
    } else return;
    event.preventDefault();
  }
  keyInList(event) {
    const item = event.target.closest("li"), next = { ArrowDown: item?.nextElementSibling, ArrowUp: item?.previousElementSibling }[event.key];
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    (next?.querySelector("button") ?? (event.key === "ArrowUp" ? this.input : null))?.focus();
  }
}
