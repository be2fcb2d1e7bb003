// Numbers as people read them: about three significant digits, with a unit.
const binaryUnits = ["B", "KiB", "MiB", "GiB", "TiB"];

function byteUnit(bytes) {
  let unit = 0;
  while (unit + 1 < binaryUnits.length && Math.abs(bytes) >= 1024 ** (unit + 1)) ++unit;
  return { name: binaryUnits[unit], size: 1024 ** unit };
}

function significant(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  const places = size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3;
  return value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
}

function formatBytes(bytes) {
  const unit = byteUnit(bytes);
  return unit.size === 1 ? `${bytes} B` : `${significant(bytes / unit.size)} ${unit.name}`;
}

function formatMs(ms) {
  if (ms >= 10000) return `${significant(ms / 1000)} s`;
  return ms < 0.1 ? `${significant(ms * 1000)} µs` : `${significant(ms)} ms`;
}

// One unit for the whole page: that of its largest peak. What is much smaller has a unit of its own.
let largestUnit = null;
function unitFor(most) {
  largestUnit ??= byteUnit(Math.max(1, ...rows.map((row) => Math.max(row.planned_peak_bytes, row.measured_peak_bytes ?? 0))));
  return most >= 0.05 * largestUnit.size && most < 1024 * largestUnit.size ? largestUnit : byteUnit(most);
}

// One unit for numbers that are read side by side. What would be shown as 0 keeps a unit of its own.
function bytesLike(most) {
  const unit = unitFor(most);
  return (bytes) => {
    if (bytes !== 0 && Math.abs(bytes) < 0.0005 * unit.size) return formatBytes(bytes);
    return unit.size === 1 ? `${bytes} B` : `${significant(bytes / unit.size)} ${unit.name}`;
  };
}
function msLike(most) {
  const [name, size] = most >= 10000 ? ["s", 1000] : most < 0.1 ? ["µs", 0.001] : ["ms", 1];
  return (ms) => (ms !== 0 && ms < 0.0005 * size ? formatMs(ms) : `${significant(ms / size)} ${name}`);
}

// For axes, where the numbers are round.
const tickMs = (ms) => (ms >= 10000 ? `${Number((ms / 1000).toPrecision(4))} s` : `${Number(ms.toPrecision(4))} ms`);
const formatCount = (count) => count.toLocaleString("en");
const formatRatio = (ratio) => `${ratio.toFixed(2)}×`;
const formatShare = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;

// Round numbers from `low` to `high`, about `count` of them. With `whole`, only whole ones.
function ticks(low, high, count, whole = false) {
  const raw = Math.max((high - low) / Math.max(1, count), whole && high > low ? 1 : 0);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999 && (!whole || Number.isInteger(factor * power))) * power;
  const result = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); ++i) result.push(i === 0 ? 0 : i * step);
  return result;
}

// The same, but closer where round numbers are so far apart that fewer than three lie in the range.
function axisTicks(low, high, count, whole = false) {
  const found = ticks(low, high, count, whole);
  return found.length < 3 ? ticks(low, high, 2 * count, whole) : found;
}

// The same for bytes: round in the page's unit.
function byteTicks(low, high, count) {
  const unit = unitFor(high);
  return ticks(low / unit.size, high / unit.size, count).map((value) => ({
    bytes: value * unit.size,
    label: value === 0 ? "0" : `${Number(value.toPrecision(4))} ${unit.name}`,
  }));
}
