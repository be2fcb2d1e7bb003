#!/usr/bin/env bash
# docs/tutorials/betty-user.md, smaller: reweighting and its baseline, side by side; frontier, fit and profile of both levels.
set -euo pipefail
ebb=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# tells TEXT COMMAND...: the command succeeds and prints the text.
tells() {
  local text=$1
  shift
  "$@" >told.txt 2>&1 || { cat told.txt; return 1; }
  grep -q -- "$text" told.txt || { cat told.txt; return 1; }
}
small=(--workload reweight --hidden 8 --batch 20 --meta 100 --threads 1)

"$ebb" train "${small[@]}" --steps 5 --eval-batches 2 --log logs/weighted >weighted.txt 2>/dev/null
grep -q 'accuracy by class' weighted.txt
"$ebb" train "${small[@]}" --steps 5 --eval-batches 2 --unweighted --log logs/baseline >/dev/null 2>&1
tells 'accuracy, class 9' "$ebb" compare logs/weighted logs/baseline --page compare.html
grep -q 'accuracy_by_class' compare.html
# Images of one's own, as long-tailed as they are.
python3 - <<'PYTHON'
import os, struct, zlib

def png(path, level):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes([level] * 8) for _ in range(8))
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
                   + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))

for name, count, level in (("bees", 40, 200), ("wasps", 20, 90)):
    os.makedirs(f"photos/{name}")
    for i in range(count):
        png(f"photos/{name}/{i}.png", level + i)
PYTHON
tells '(bees, wasps)' "$ebb" train --workload reweight --data photos --image-size 8 --hidden 8 --batch 2 --steps 3 --threads 1
tells 'ms a step' "$ebb" frontier "${small[@]}" --points 2 --out frontier
tells 'the largest batch' "$ebb" fit --workload reweight --hidden 8 --meta 100 --threads 1 --budget 4MiB --most 20 --points 2
tells 'as planned' "$ebb" profile "${small[@]}" --steps 1 --out profile
test -f frontier/report.html -a -f profile/report.html
echo "a Betty user's day: done"
