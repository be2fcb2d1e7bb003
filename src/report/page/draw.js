// Elements, scales and the one tooltip.
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const linear = (from, to, begin, end) => {
  const factor = (end - begin) / (to - from || 1);
  const scale = (value) => begin + (value - from) * factor;
  scale.invert = (at) => from + (at - begin) / factor;
  return scale;
};

const round = (value) => Math.round(value * 100) / 100;

const measuring = document.createElement("canvas").getContext("2d");
function textWidth(text, font = "12px system-ui, sans-serif") {
  measuring.font = font;
  return measuring.measureText(text).width;
}

const categoryLabels = {
  weights: "weights", optimizer: "optimizer state", inputs: "inputs",
  gradients: "gradients", activations: "activations", workspace: "workspace",
};
// From the bottom of a stack: what stays between steps comes first.
const categoryOrder = ["weights", "optimizer", "inputs", "gradients", "activations", "workspace"];
const categoryColour = (name) => `var(--${name})`;

function legend(names) {
  return html("ul", { class: "legend", "aria-label": "Categories" },
    names.map((name) => html("li", {},
      html("span", { class: "swatch", style: `background:${categoryColour(name)}` }), categoryLabels[name])));
}

// A name that may be broken after its dots and underscores.
const breakable = (text) => text.split(/(?<=[._])/).flatMap((part, k) => (k ? [html("wbr"), part] : [part]));

// A line at the chart's left, with round numbers of bytes.
function byteAxis(scale, low, high, left, right, count = 6) {
  return svg("g", { class: "axis" }, byteTicks(low, high, count).map((tick) => [
    svg("line", { x1: left, x2: right, y1: round(scale(tick.bytes)), y2: round(scale(tick.bytes)) }),
    svg("text", { x: left - 8, y: round(scale(tick.bytes)) + 4, "text-anchor": "end" }, tick.label),
  ]));
}

const tip = document.getElementById("tip");
// Lines of [text, class]; placed beside the point and kept on the screen.
function showTip(lines, x, y) {
  tip.replaceChildren(...lines.map(([text, kind]) => html("div", { class: kind ?? "" }, text)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? x - 16 - width : x + 16;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${Math.max(8, Math.min(y - height / 2, innerHeight - height - 8))}px`;
}
function hideTip() {
  tip.hidden = true;
}

// Calls `draw(width)` now and whenever the element's width changes.
function onWidth(node, draw) {
  let last = 0;
  const update = () => {
    const width = Math.floor(node.clientWidth);
    if (width > 0 && width !== last) draw((last = width));
  };
  new ResizeObserver(update).observe(node);
  update();
}

// Readers who ask their system for less motion get none.
const scrolls = () => (matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth");

// A part that scrolls sideways where it is too wide, also by keyboard.
const scrolling = (label, ...children) => html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, children);

// How a mark is pointed at and chosen, by mouse, finger and keyboard.
function pointing(tell, choose) {
  return {
    onpointermove: (event) => tell(event.clientX, event.clientY),
    onpointerdown: (event) => tell(event.clientX, event.clientY),
    onpointerleave: (event) => event.pointerType !== "touch" && hideTip(),
    onblur: hideTip,
    onfocus: (event) => {
      const box = event.currentTarget.getBoundingClientRect();
      tell(box.right, box.top);
    },
    onclick: () => choose(),
    onkeydown: (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose()),
  };
}
document.addEventListener("pointerdown", (event) => {
  // A tap beside the charts closes what a tap has opened.
  if (!event.target.closest("svg, .found")) hideTip();
});
document.addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
