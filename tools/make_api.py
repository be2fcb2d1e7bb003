#!/usr/bin/env python3
"""Writes the reference of the public interface, docs/api/*.md, from the headers under include/ebb.

  tools/make_api.py              writes the pages
  tools/make_api.py --check      only compares; ends with 1 where a page is out of date (a test runs this)

A page for each room. The comment at a header's top introduces it; each declaration in the namespace follows with
the comment above it as text. Private parts, bodies of functions and implementation details are left out.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = ROOT / "include" / "ebb"
OUT = ROOT / "docs" / "api"

# Page, its heading, and the headers that stand directly under include/ebb; other rooms are folders of that name. A
# header or a folder that is not named here still gets its place: at the end of the first page, or a page of its own.
ROOMS = [
    ("graph", "Tensors, ops and graphs", ["tensor", "variable", "ops", "grad", "recompute", "precision", "parameter_form", "graph", "node", "op",
                                          "attributes", "shape", "dtype", "device", "random", "half"]),
    ("plan", "Plans and programs", ["plan", "program", "passes", "activation_bits", "rates", "probe", "arena", "movable_arena", "storage", "machine",
                                    "threads", "bytes", "error", "version"]),
    ("nn", "Modules and layers", []),
    ("optim", "Optimizers and schedules", []),
    ("train", "Training steps", []),
    ("mlo", "Multilevel optimization", []),
    ("models", "Models", []),
    ("data", "Data", []),
    ("io", "Files", []),
    ("report", "Reports", []),
    ("workloads", "Workloads", []),
]


def uncomment(lines):
    """The text of comment lines, with an empty line where they have one, and lists and code kept as they are."""
    return "\n".join(re.sub(r"^\s*// ?", "", line) for line in lines)


def prose(lines):
    """Comment lines as Markdown: indented examples become code."""
    result, code = [], False
    for line in uncomment(lines).splitlines():
        indented = line.startswith("  ") and bool(line.strip())
        if indented and not code:
            result.append("\n```cpp")
        if not indented and code and line.strip():
            result.append("```\n")
        code = indented or (code and not line.strip())
        result.append(line[2:] if code and indented else line.replace("<", "&lt;") if not code else line)
    if code:
        result.append("```")
    return "\n".join(result).strip()


def closed(text):
    """Whether brackets and braces of a piece of code are balanced, leaving comments and strings aside."""
    bare = re.sub(r"//[^\n]*|'(\\.|[^'\\])'|\"(\\.|[^\"\\])*\"", "", text)
    return all(bare.count(a) <= bare.count(b) for a, b in ("{}", "()"))


def chunks(lines):
    """Declarations of a namespace: (comment lines, code lines), in order."""
    comment, code = [], []
    for line in lines:
        if code:
            code.append(line)
        elif line.startswith("//"):
            comment.append(line)
            continue
        elif not line.strip():
            if comment:
                yield comment, []
            comment = []
            continue
        else:
            code = [line]
        text = "\n".join(code)
        if closed(text) and re.search(r"[;}]\s*(//.*)?$", code[-1]):
            yield comment, code
            comment, code = [], []


def without_private(code):
    """A class without its private part, and without the bodies of what it defines in place."""
    result, hidden = [], False
    for line in code:
        if re.match(r"\s*(private|protected):", line):
            hidden = True
        elif re.match(r"\s*public:", line):
            hidden = False
        elif line.startswith("}"):
            hidden = False
        if hidden:
            continue
        if line.startswith("}"):
            while result and not result[-1].strip():
                result.pop()
        result.append(re.sub(r"^(\s+.*\)(?: const)?(?: noexcept)?(?: override)?)(?: : .*)? \{.*\}$", r"\1;", line))
    return result


def without_body(code):
    """A function's declaration: what stands before its body."""
    first = "\n".join(code)
    if re.match(r"(template\s*<[^\n]*>\n)?(requires[^\n]*\n)?\s*(class|struct|enum|namespace|union)\b", first) or "{" not in first:
        return code
    depth = 0
    for at, char in enumerate(first):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "{" and depth == 0 and re.search(r"(\)|const|noexcept|override|>)\s*$", first[:at]):
            return (first[:at].rstrip() + ";").splitlines()
    return code


def page_of_header(path):
    lines = path.read_text().splitlines()
    intro = []
    while lines and lines[0].startswith("//"):
        intro.append(lines.pop(0))
    parts = [f"## `ebb/{path.relative_to(HEADERS)}`", prose(intro)]
    inside, body = False, []
    for line in lines:
        if re.match(r"namespace ebb\b.*{$", line):
            inside = True
        elif re.match(r"}  // namespace ebb", line):
            inside = False
        elif inside and not line.startswith("#"):
            body.append(line)
    for comment, code in chunks(body):
        first = code[0] if code else ""
        if re.match(r"(class|struct) \w+;$", first) or "detail" in first or first.startswith("}") or re.match(r"namespace|inline namespace", first):
            continue
        if not code:
            parts.append(prose(comment))
            continue
        shown = without_body(without_private(code))
        while shown and not shown[-1].strip():
            shown.pop()
        # The comment belongs to this declaration; a reader looks for the name first.
        parts.append("```cpp\n" + "\n".join(shown) + "\n```")
        if comment:
            parts.append(prose(comment))
    return "\n\n".join(part for part in parts if part)


def headers_of(room, names):
    if names:
        listed = [HEADERS / f"{name}.h" for name in names]
        return [path for path in listed if path.exists()]
    return sorted((HEADERS / room).glob("*.h"))


def rooms():
    named = {name for _, _, names in ROOMS for name in names} | {"ebb"}
    left = [path.stem for path in sorted(HEADERS.glob("*.h")) if path.stem not in named]
    first, heading, names = ROOMS[0]
    folders = sorted(path.name for path in HEADERS.iterdir() if path.is_dir())
    return [(first, heading, names + left), *ROOMS[1:],
            *((name, name.capitalize(), []) for name in folders if name not in {room for room, _, _ in ROOMS})]


def pages():
    result, index = {}, []
    for room, heading, names in rooms():
        paths = headers_of(room, names)
        if not paths:
            continue
        result[f"{room}.md"] = f"# {heading}\n\nMade from the headers by `tools/make_api.py`.\n\n" + "\n\n".join(map(page_of_header, paths)) + "\n"
        index.append(f"- [{heading}]({room}.md): " + ", ".join(f"`{path.relative_to(HEADERS)}`" for path in paths))
    result["README.md"] = ("# The public interface\n\n`#include <ebb/ebb.h>` has all of it. Made from the headers by `tools/make_api.py`.\n\n" +
                           "\n".join(index) + "\n")
    return result


def main():
    wanted = pages()
    if "--check" in sys.argv:
        old = {path.name: path.read_text() for path in OUT.glob("*.md")}
        wrong = sorted(name for name in old.keys() | wanted.keys() if old.get(name) != wanted.get(name))
        if wrong:
            print(f"out of date: {', '.join(f'docs/api/{name}' for name in wrong)}. Run tools/make_api.py.")
            sys.exit(1)
        return
    OUT.mkdir(exist_ok=True)
    for path in OUT.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (OUT / name).write_text(text)


if __name__ == "__main__":
    main()
