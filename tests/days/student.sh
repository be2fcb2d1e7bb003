#!/usr/bin/env bash
# docs/tutorials/student.md, smaller: plan, fit, train with early stopping, generate, resume, compare.
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
for i in $(seq 1 300); do printf 'the %d th line of a small text\n' "$i"; done >input.txt
gzip -k input.txt
model=(--workload gpt2 --layers 1 --width 32 --heads 2 --sequence 32 --threads 1)
sizes=("${model[@]}" --data input.txt)

tells 'Defaults of the workload gpt2' "$ebb" help plan --workload gpt2
tells '^peak' "$ebb" plan "${sizes[@]}"
tells 'the largest batch within' "$ebb" fit "${sizes[@]}" --budget 4MiB --most 16 --points 2
"$ebb" train "${sizes[@]}" --batch 4 --budget 4MiB --steps 8 --warmup 2 --eval-every 4 --eval-batches 1 --patience 5 --keep-best \
  --checkpoint run --log logs/first --save model >first.txt 2>/dev/null
grep -q 'read as bytes' first.txt
test -f run/best.safetensors -a -f run/tokenizer.json -a -f model/tokenizer.json -a -f logs/first/summary.html
"$ebb" generate --model model --prompt 'the ' --max-tokens 8 --temperature 0.8 --seed 1 >written.txt 2>/dev/null
test -s written.txt
"$ebb" train --resume run --steps 12 >/dev/null 2>&1
"$ebb" train "${model[@]}" --data input.txt.gz --batch 4 --steps 4 --eval-every 2 --eval-batches 1 --lr 1e-3 --log logs/second \
  >/dev/null 2>&1
tells 'test loss' "$ebb" compare logs/first logs/second --page compare.html
grep -q 'logs/second' compare.html
echo "a student's day: done"
