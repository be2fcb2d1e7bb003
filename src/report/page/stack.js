// A timeline as a stack of tensors: at every instruction, what is alive, bottom to top. Categories
// come in one order; within one, what was made earlier lies lower.
class Stack {
  constructor(timeline) {
    this.timeline = timeline;
    this.count = timeline.instructions.op.length;
    this.names = timeline.names;
    const { category, bytes, first, last } = timeline.buffers;
    this.rank = timeline.categories.map((name) => categoryOrder.indexOf(name));
    this.order = bytes.map((_, b) => b).sort((a, b) =>
      this.rank[category[a]] - this.rank[category[b]] || first[a] - first[b] || a - b);
    this.live = categoryOrder.map(() => new Float64Array(this.count + 1));
    for (let b = 0; b < bytes.length; ++b) {
      const line = this.live[this.rank[category[b]]];
      line[first[b]] += bytes[b];
      line[last[b] + 1] -= bytes[b];
    }
    this.total = new Float64Array(this.count);
    for (const line of this.live)
      for (let i = 0, sum = 0; i < this.count; ++i) {
        sum += line[i];
        line[i] = sum;
        this.total[i] += sum;
      }
    this.most = this.total.reduce((a, b) => Math.max(a, b), 1);
    this.used = categoryOrder.filter((_, c) => this.live[c].some((value) => value > 0));
  }

  times() {
    const { ms, measured_ms } = this.timeline.instructions;
    return measured_ms.length ? measured_ms : ms;
  }

  // What is alive during instruction i, bottom to top, each with the bytes below it.
  alive(i) {
    const { first, last, bytes } = this.timeline.buffers;
    const result = [];
    let base = 0;
    for (const b of this.order)
      if (first[b] <= i && i <= last[b] && bytes[b] > 0) {
        result.push({ buffer: b, base });
        base += bytes[b];
      }
    return result;
  }

  // The buffer that covers so many bytes above the bottom at instruction i, or undefined.
  at(i, height) {
    const { bytes } = this.timeline.buffers;
    return this.alive(i).find(({ buffer, base }) => base <= height && height < base + bytes[buffer])?.buffer;
  }

  // The bytes below buffer b at each instruction of its life.
  bases(b) {
    const { first, last, bytes, category } = this.timeline.buffers;
    const from = first[b], to = last[b], change = new Float64Array(to - from + 2);
    const rank = this.rank[category[b]];
    for (const other of this.order) {
      if (other === b) break;
      if (this.rank[category[other]] !== rank || last[other] < from || first[other] > to) continue;
      change[Math.max(first[other], from) - from] += bytes[other];
      change[Math.min(last[other], to) - from + 1] -= bytes[other];
    }
    const result = new Float64Array(to - from + 1);
    for (let i = from, sum = 0; i <= to; ++i) {
      sum += change[i - from];
      result[i - from] = sum;
      for (let c = 0; c < rank; ++c) result[i - from] += this.live[c][i];
    }
    return result;
  }

  place(name) {
    return this.names[name] || "(outside modules)";
  }
  instruction(i) {
    const { op, path } = this.timeline.instructions;
    return `${this.names[op[i]]} in ${this.place(path[i])}`;
  }

  // What there is to say of a buffer at instruction i.
  describe(b, i) {
    const { path, op, category, bytes, first, last, offset } = this.timeline.buffers;
    const name = this.timeline.categories[category[b]];
    const stays = offset[b] < 0;
    return [
      [this.place(path[b]), "tip-title"],
      [`${categoryLabels[name]}${stays ? "" : `, made by ${this.names[op[b]]}`}`, "tip-kind"],
      [`${formatBytes(bytes[b])}, ${formatShare(bytes[b] / this.most)} of the peak`],
      [stays ? "stays from step to step"
        : `lives from instruction ${first[b]} to ${last[b]} of ${this.count}`],
      [stays ? "" : `at ${formatBytes(offset[b])} in the arena`],
      [`instruction ${i}: ${this.instruction(i)}; ${formatBytes(this.total[i])} alive`, "tip-moment"],
    ].filter(([text]) => text);
  }
}

const stacks = new Map();
function stackOf(name) {
  if (!stacks.has(name)) stacks.set(name, new Stack(data.timelines[name]));
  return stacks.get(name);
}
