#!/usr/bin/env bash
# The embedded adapters on one GPU host, in stages that can be stopped and run again:
#   policies    a policy on all training questions, and one on either half of them
#   samples     vLLM: held-out questions by the first, each half by the policy of the other; labels
#   verifiers   PRM and ORM from those labels
#   distil      the first policy goes on with right solutions of the other two
# held.jsonl are held-out questions, made.jsonl those of them that the generator made. Everything is kept in WORK, where
# questions.jsonl comes from `stepsearch train prepare`; what is worth keeping is copied to OUT at each stage's end.
# GPUS=0,1 trains PRM and ORM on a card each. Without other settings it is the recipe of the adapters that ship.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=${WORK:-build/gpu/work}; out=${OUT:-build/gpu/out}; base=${BASE:-embedded}
IFS=, read -ra gpus <<< "${GPUS:-0}"
rate=optimisation.learning_rate=3e-3
began=$SECONDS
say() { echo "[$((SECONDS - began)) s] $*"; }
stepsearch() { python3 -m stepsearch "$@"; }
mkdir -p "$work" "$out"

keep() {
  for name in "$@"; do
    rm -rf "$work/$name/checkpoints"
    cp "$work/$name/adapter_model.safetensors" "$out/$name.safetensors"
    tar -C "$work/$name" --exclude='*.safetensors' -czf "$out/$name.tar.gz" .
  done
}

# Run what is named at the same time, with a log each; fails when one of them fails.
together() {
  local ids=() status=0
  for name in "$@"; do "run_$name" > "$work/$name.log" 2>&1 & ids+=($!); done
  for id in "${ids[@]}"; do wait "$id" || status=1; done
  for name in "$@"; do
    echo "-- $name"
    grep -v -e Capturing -e it/s "$work/$name.log" | tail -n "${TAIL:-6}" || true
  done
  return "$status"
}

train_policy() {
  CUDA_VISIBLE_DEVICES=${gpus[0]} stepsearch train policy out="$work/$1" base="$base" questions="$2" held_out="$3" \
    optimisation.checkpoints=1 optimisation.batch_size=64 optimisation.micro_batch=null optimisation.evaluations=3 "${@:4}"
}
run_policy() { train_policy policy "$work/questions.jsonl" 0.07 ${POLICY:-$rate}; }
run_half0() { train_policy half0 "$work/half0.jsonl" 0 ${HALF:-$rate optimisation.epochs=4}; }
run_half1() { train_policy half1 "$work/half1.jsonl" 0 ${HALF:-$rate optimisation.epochs=4}; }
policies() {
  [ -e "$work/held.jsonl" ] || python3 examples/training_split.py "$work/questions.jsonl" "$work"
  together policy half0 half1
  keep policy
  say "policies done"
}

write_samples() { CUDA_VISIBLE_DEVICES=${gpus[0]} python3 examples/training_sample.py "$work/$1" --base "$base" ${SAMPLE:-} "${@:2}"; }
run_held() {
  write_samples policy "$work/held.jsonl:$work/held-greedy.jsonl:1:0" "$work/made.jsonl:$work/made-greedy.jsonl:1:0" \
    "$work/held.jsonl:$work/held-samples.jsonl:${HELD:-64}:0.8" "$work/made.jsonl:$work/made-samples.jsonl:${MADE:-16}:0.8"
}
run_write0() { write_samples half1 "$work/half0.jsonl:$work/half0-samples.jsonl:${TAUGHT:-8}:0.8"; }
run_write1() { write_samples half0 "$work/half1.jsonl:$work/half1-samples.jsonl:${TAUGHT:-8}:0.8"; }
label_all() {
  for name in {held,made}-{greedy,samples} half{0,1}-samples; do
    stepsearch label samples="$work/$name.jsonl" out="$work/$name-labelled.jsonl" method="${LABELS:-outcome}" workers="${WORKERS:-12}" 2>&1 | tail -n 2
  done
}
samples() {
  together held write0 write1
  say "samples done"
  for name in held made half0 half1; do gzip -c "$work/$name-samples.jsonl" > "$out/$name-samples.jsonl.gz"; done
  label_all
  say "labels done"
}

train_verifier() {
  CUDA_VISIBLE_DEVICES=$2 stepsearch train "$1" out="$work/$1" base="$base" lora.start="$work/policy" \
    labelled="[$(printf "$work/%s-samples-labelled.jsonl," half0 half1)$work/held-samples-labelled.jsonl]" \
    optimisation.checkpoints=1 optimisation.batch_size=64 ${VERIFIER:-per_class=4 optimisation.learning_rate=1e-3}
}
run_prm() { train_verifier prm "${gpus[0]}"; }
run_orm() { train_verifier orm "${gpus[-1]}"; }
verifiers() {
  together prm orm
  keep prm orm
  say "verifiers done"
  CUDA_VISIBLE_DEVICES=${gpus[0]} python3 examples/training_score.py "$work/held-samples-labelled.jsonl" "$work/held-scored.jsonl" "$work/prm" "$work/orm"
  gzip -c "$work/held-scored.jsonl" > "$out/held-scored.jsonl.gz"
  say "held-out samples scored"
}

run_distil() {
  python3 examples/training_distil.py "$work/own.jsonl" "$work"/half?-samples-labelled.jsonl
  train_policy distilled "[$work/questions.jsonl,$work/own.jsonl]" 0.07 lora.start="$work/policy" ${DISTIL:-optimisation.epochs=1}
}
distil() { together distil; keep distilled; say "distilled policy done"; }

for stage in "$@"; do "$stage"; done
