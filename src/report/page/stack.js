// What the model itself or the loss computes, in none of its modules.
const topLevel = "(top level)";

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

  // When each instruction begins by the clock of the kernels, and when the step ends. Copies between tiers run beside
  // them and take none of that time.
  clock() {
    const { clock_ms } = this.timeline.instructions;
    if (clock_ms) return [...clock_ms, this.timeline.end_ms];
    const starts = [0];
    this.times().forEach((ms, i) => starts.push(starts[i] + ms));
    return starts;
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
    return this.names[name] || topLevel;
  }
  // The line of source code that made the module which a tensor or a kernel lies in; empty where no module is named.
  source(name) {
    const { sources } = this.timeline;
    for (let path = this.names[name]; sources && path; path = path.slice(0, Math.max(0, path.lastIndexOf("."))))
      if (Object.hasOwn(sources, path)) return sources[path];
    return "";
  }
  instruction(i) {
    const { op, path } = this.timeline.instructions;
    return `${this.names[op[i]]} in ${this.place(path[i])}`;
  }

  // What there is to say of an instruction.
  describeKernel(i) {
    const { op, path, phase, ms, measured_ms, lane } = this.timeline.instructions;
    const copy = this.copies().get(i), time = this.times()[i];
    return [
      [this.place(path[i]), "tip-title"],
      [this.source(path[i]), "tip-source"],
      [copy ? `${this.names[op[i]]}, ${formatBytes(copy)}${time > 0 ? `, ${formatBytes(copy / (time / 1000))}/s` : ""}` : `${this.names[op[i]]}, ${this.timeline.phases[phase[i]]}`, "tip-kind"],
      [lane && this.timeline.lanes[lane[i]] === "beside" ? "beside the other kernels" : ""],
      [measured_ms.length ? `${formatMs(measured_ms[i])} measured, ${formatMs(ms[i])} predicted` : `${formatMs(ms[i])} predicted`],
      [`instruction ${i}; ${formatBytes(this.total[i])} alive`, "tip-moment"],
    ].filter(([text]) => text);
  }

  // The bytes of every copy between tiers, by its instruction.
  copies() {
    if (!this.copied) {
      const { instruction = [], bytes = [] } = this.timeline.copies ?? {};
      this.copied = new Map(instruction.map((i, k) => [i, bytes[k]]));
    }
    return this.copied;
  }

  // What there is to say of a buffer at instruction i.
  describe(b, i) {
    const { path, op, type, category, bytes, first, last, offset } = this.timeline.buffers;
    const name = this.timeline.categories[category[b]];
    const stays = offset[b] < 0;
    return [
      [this.place(path[b]), "tip-title"],
      [this.source(path[b]), "tip-source"],
      [type ? this.names[type[b]] : ""],
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
// Of a row of this study, or of the one laid over it (see other.js).
function stackOf(name) {
  if (!stacks.has(name)) stacks.set(name, new Stack(data.timelines[name] ?? otherTimeline(name)));
  return stacks.get(name);
}
