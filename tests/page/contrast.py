"""Contrast as WCAG 2 defines it, of what a page shows."""

# Every text with its colour, size and the ground behind it. Text in an SVG is drawn on the page's ground or, for the
# names of kernels, on the bar below it.
TEXTS = """(() => {
  const colour = (text) => (text.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const [r, g, b, a = 1] = colour(getComputedStyle(at).backgroundColor);
      if (a > 0.99) return [r, g, b];
    }
    return colour(getComputedStyle(document.body).backgroundColor).slice(0, 3);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || node.closest("script, style, noscript, title, option, optgroup")) continue;
    if (!node.getClientRects().length) continue;
    const style = getComputedStyle(node), inSvg = node instanceof SVGElement;
    const under = inSvg && node.classList.contains("kernel-name") && !node.classList.contains("on-phase-3")
      ? colour(getComputedStyle(node.previousElementSibling).fill).slice(0, 3) : ground(node);
    found.push({ text: walker.currentNode.textContent.trim().slice(0, 40), colour: colour(inSvg ? style.fill : style.color).slice(0, 3),
      ground: under, size: parseFloat(style.fontSize), weight: Number(style.fontWeight) });
  }
  return found;
})()"""

# The colours that carry meaning, and the page's ground.
PALETTE = """(() => {
  const style = getComputedStyle(document.documentElement);
  const names = ["page", "text", "weights", "optimizer", "inputs", "gradients", "activations", "workspace", "phase-0", "phase-1",
    "phase-2", "phase-3", "store", "fetch", "time", "accent"];
  const probe = document.createElement("span");
  document.body.append(probe);
  const found = {};
  for (const name of names) {
    probe.style.color = style.getPropertyValue(`--${name}`);
    found[name] = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number).slice(0, 3);
  }
  probe.remove();
  return found;
})()"""


def luminance(colour):
    parts = [c / 255 for c in colour]
    r, g, b = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def required(text):
    """AA: 4.5, or 3 for large text."""
    large = text["size"] >= 24 or (text["size"] >= 18.66 and text["weight"] >= 700)
    return 3.0 if large else 4.5


def lab(colour):
    """CIE L*a*b*, in which distances are about as large as differences look."""
    r, g, b = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    f = [v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def difference(a, b):
    return sum((p - q) ** 2 for p, q in zip(lab(a), lab(b))) ** 0.5
