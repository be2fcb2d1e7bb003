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
tells 'test accuracy' "$ebb" compare logs/weighted logs/baseline
tells 'ms a step' "$ebb" frontier "${small[@]}" --points 2 --out frontier
tells 'the largest batch' "$ebb" fit --workload reweight --hidden 8 --meta 100 --threads 1 --budget 4MiB --most 20 --points 2
tells 'as planned' "$ebb" profile "${small[@]}" --steps 1 --out profile
test -f frontier/report.html -a -f profile/report.html
echo "a Betty user's day: done"
