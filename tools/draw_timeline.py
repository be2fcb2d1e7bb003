#!/usr/bin/env python3
"""Draws the memory of a step over its instructions, by category, from profiles written by `ebb plan --profile`.

  tools/draw_timeline.py OUT.svg "title" PROFILE.json ["title" PROFILE.json ...]

One panel for each profile, all on one scale.
"""
import json
import sys

COLOURS = {"weights": "#4c78a8", "optimizer": "#9ecae9", "gradients": "#e45756", "activations": "#f2a93b",
           "inputs": "#88b04b", "workspace": "#b279a2"}
WIDTH, HEIGHT, LEFT, TOP, GAP, COLUMNS = 640, 150, 70, 26, 42, 240


def thinned(profile):
    """At most COLUMNS moments, each the fullest of its stretch, so that no peak is lost."""
    live, count = profile["live_bytes"], len(profile["instructions"])
    total = [sum(live[c][i] for c in COLOURS) for i in range(count)]
    step = max(1, -(-count // COLUMNS))
    kept = [max(range(b, min(b + step, count)), key=lambda i: total[i]) for b in range(0, count, step)]
    return {c: [live[c][i] for i in kept] for c in COLOURS}


def panel(title, profile, y, most):
    live = thinned(profile)
    count = len(live["weights"])
    base = [0] * count
    parts = [f'<text x="{LEFT}" y="{y - 8}" class="title">{title}</text>']
    for category, colour in COLOURS.items():
        top = [b + v for b, v in zip(base, live[category])]
        if top == base:
            continue
        x = [LEFT + WIDTH * i / max(1, count - 1) for i in range(count)]
        up = [f"{x[i]:.1f},{y + HEIGHT * (1 - top[i] / most):.1f}" for i in range(count)]
        down = [f"{x[i]:.1f},{y + HEIGHT * (1 - base[i] / most):.1f}" for i in reversed(range(count))]
        parts.append(f'<polygon fill="{colour}" points="{" ".join(up + down)}"/>')
        base = top
    peak = max(range(count), key=lambda i: base[i])
    px, py = LEFT + WIDTH * peak / max(1, count - 1), y + HEIGHT * (1 - base[peak] / most)
    anchor = "start" if peak < count * 0.7 else "end"
    parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3"/>')
    parts.append(f'<text x="{px + (6 if anchor == "start" else -6):.1f}" y="{max(py - 4, y + 8):.1f}" text-anchor="{anchor}">'
                 f'{base[peak] / 2**20:.0f} MiB</text>')
    parts.append(f'<path d="M{LEFT} {y} V{y + HEIGHT} H{LEFT + WIDTH}"/>')
    for share in (0, 0.5, 1):
        parts.append(f'<text x="{LEFT - 6}" y="{y + HEIGHT * (1 - share) + 4:.1f}" text-anchor="end">{most * share / 2**20:.0f} MiB</text>')
    return parts


def main():
    out, rest = sys.argv[1], sys.argv[2:]
    panels = [(rest[i], json.load(open(rest[i + 1]))) for i in range(0, len(rest), 2)]
    most = max(sum(p["live_bytes"][c][i] for c in COLOURS) for _, p in panels for i in range(len(p["instructions"])))
    height = TOP + len(panels) * (HEIGHT + GAP) + 14
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" font-family="sans-serif" font-size="11">',
             '<style>text{fill:#222}.title{font-size:13px;font-weight:bold}path{fill:none;stroke:#444}circle{fill:#222}</style>',
             f'<rect width="100%" height="100%" fill="#fff"/>']
    for number, (title, profile) in enumerate(panels):
        parts += panel(title, profile, TOP + number * (HEIGHT + GAP), most)
    x = LEFT
    for category, colour in COLOURS.items():
        parts.append(f'<rect x="{x}" y="{height - 18}" width="10" height="10" fill="{colour}"/>'
                     f'<text x="{x + 14}" y="{height - 9}">{category}</text>')
        x += 24 + 7 * len(category)
    open(out, "w").write("\n".join(parts + ["</svg>"]) + "\n")


if __name__ == "__main__":
    main()
