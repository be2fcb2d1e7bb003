#!/usr/bin/env bash
# docs/tutorials/engineer.md, smaller. The test `consumer` builds the starter project; this one uses the program from scripts.
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

"$ebb" train --workload mlp --hidden 8 --batch 16 --steps 4 --eval-batches 1 --threads 1 --print-config >run.toml
"$ebb" train --config run.toml --json >result.json 2>/dev/null
python3 - <<'PYTHON'
import json
result = json.load(open("result.json"))
assert result["steps"] == 4 and result["planned_peak_bytes"] >= result["measured_peak_bytes"] > 0, result
PYTHON
if "$ebb" train --stpes 100 2>error.txt; then exit 1; else test $? -eq 2; fi
grep -q 'did you mean --steps?' error.txt
"$ebb" completion bash >completion.sh
bash -n completion.sh
tells '^\.SH NAME' "$ebb" man
echo "an engineer's day: done"
