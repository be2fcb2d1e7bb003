#!/usr/bin/env python3
"""Checks that every room of the library includes only its own headers and those of rooms before it.

  tools/check_includes.py [ROOT]    tells every include that breaks the order, and ends with 1 if there is one

A room is a folder of src with the folder of that name under include/ebb. Headers that stand directly under include/ebb
belong to the rooms that ROOMS names them for. Public headers may include public headers alone. Tests lie beside what they
test and may use any room.
"""
import pathlib
import re
import sys

# In order, each with its headers directly under include/ebb. docs/architecture.md describes them.
ROOMS = {
    "core": "bytes communicator device dtype error half id image_layout machine movable_arena random shape storage tier threads tuning version",
    "graph": "attributes graph node op parameter_form recompute tensor variable",
    "ops": "decode masks ops pairs quantised",
    "autodiff": "grad",
    "passes": "activation_bits passes precision replace",
    "plan": "plan rates",
    "runtime": "arena print probe program",
    "dist": "",
    "nn": "",
    "optim": "",
    "train": "",
    "models": "",
    "generate": "",
    "data": "",
    "text": "",
    "io": "",
    "onnx": "",
    "prune": "",
    "report": "",
    "mlo": "",
    "workloads": "",
    "all": "ebb",  # ebb.h includes the whole public interface
    "cli": "",
}

ORDER = {room: place for place, room in enumerate(ROOMS)}
OWNER = {f"ebb/{header}.h": room for room, headers in ROOMS.items() for header in headers.split()}
ENDINGS = {".h", ".cpp", ".cu", ".cuh"}
# Headers of ebb by their quotes or their folder; other headers of libraries are in angle brackets.
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<(ebb/[^>]+)>)', re.MULTILINE)


def room_of(header):
    """The room that a header belongs to, by the name it is included with; None if it is no header of a room."""
    if header in OWNER:
        return OWNER[header]
    folders = header.removeprefix("ebb/").split("/")[:-1]
    return folders[0] if folders and folders[0] in ORDER else None


def included(text):
    """Each include with its line."""
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[1] or match[2]


def problems_of(path, name, text):
    """`name` is what others include the file by, or would."""
    public, room = path.startswith("include/"), room_of(name)
    if room is None:
        yield f"{path}: it belongs to no room; add it to ROOMS in tools/check_includes.py"
        return
    for line, header in included(text):
        other, place = room_of(header), f"{path}:{line}"
        if other is None:
            yield f'{place}: "{header}" is in no room; name headers by their path from src or include'
        elif public and not header.startswith("ebb/"):
            yield f'{place}: a public header includes "{header}", which is not installed'
        elif ORDER[other] > ORDER[room]:
            yield f'{place}: {room} may not include "{header}" of {other}, a room after it'


def problems(root):
    seen = set()
    for folder in ("include", "src"):
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in ENDINGS or file.name.endswith("_test.cpp"):
                continue
            path, name = file.relative_to(root).as_posix(), file.relative_to(root / folder).as_posix()
            seen.add(name)
            yield from problems_of(path, name, file.read_text())
    for header in sorted(OWNER.keys() - seen):
        yield f"tools/check_includes.py: ROOMS names include/{header}, which does not exist"


def main():
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    found = list(problems(root))
    print("\n".join(found) if found else "every include keeps to the order of the rooms")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
