r"""Searches and independent samples at equal policy tokens, with several vLLM engines on a GPU.

    python examples/equal_tokens.py --runs RUNS --model MODEL --held held.jsonl \
        --data "gsm8k gsm8k.jsonl 6197" --data "multiarith multiarith.jsonl 4359"

A file has lines with question, answer and row; the number is what mcts may write for a question, 64
times the mean tokens of a sample. The others write 64 steps side by side, which comes to as many
tokens on average: `policy_tokens` of results.csv says whether it did. All searches are done on the
first file before any on the next. The exploration of mcts is the smallest with which it spends 90%
of its budget on the held-out questions; nothing else is chosen. MODEL is the policy's adapter
merged into its base, verifiers are the embedded ones. Each engine is a process that takes whatever
run no other is at; doing it again goes on with what is left. docs/training-log.md says what this
was made for.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

from stepsearch.benchmarks.run_data import read_runs

ENGINE = Path(__file__).with_name("one_engine.py")
MCTS = "mcts search.simulations=1024 search.parallel=8 search.virtual_loss=0.5 concurrency=64 "
MCTS += "search.exploration="
EXPLORATIONS = (0.1, 0.3, 1.0)
SPENT = 0.9
STAGGER = 3  # seconds between two starts, for engines take their memory one after the other
# Those that write n steps side by side have no limit but n, as samples have none: one at the mean
# would cut all chains of a question with long solutions off in the same step, short of the answer.
SEARCHES = tuple(
    f"{search} budget.policy_tokens=null"
    for search in (
        *("dvts search.n={n} search.width=4", "beam search.n={n} search.width=4"),
        *("rebase search.n={n}", "particle search.n={n}", "best_of_n search.n={n}"),
    )
)
SETTINGS = (
    *("policy=vllm", 'policy.prompt_format={system:null,final_prefix:"####"}'),
    *("policy.seeded=false", "policy.engine.max_length=1024", "policy.engine.max_seqs=512"),
    *("policy.engine.gpu_memory=0.1", "policy.engine.cache_bytes=5000000000", "verifier=ensemble"),
    *("verifier.members.prm.cache_bytes=8000000000", "select=weighted"),
    *("verifier.members.orm.cache_bytes=8000000000", "sampling.max_tokens=320", "concurrency=32"),
)

Process = subprocess.Popen[bytes]


def start(options: argparse.Namespace, name: str, searches: list[str], data: list[str]) -> Process:
    """An engine at its work."""
    command = [sys.executable, str(ENGINE), "--runs", str(options.runs / name)]
    command += ["--seconds", str(options.until - time.monotonic())]
    command += [part for text in data for part in ("--data", text)]
    command += [part for text in searches for part in ("--search", text)]
    command += [*SETTINGS, f"policy.model={options.model}", *options.overrides]
    gpu = {"CUDA_VISIBLE_DEVICES": str(options.started % options.gpus)}
    if options.started:
        time.sleep(STAGGER)
    options.started += 1
    log = options.runs / f"engine-{options.started}.log"
    with log.open("w") as file:
        return subprocess.Popen(
            command, env=os.environ | gpu, stdout=file, stderr=subprocess.STDOUT
        )


def data_text(given: str) -> str:
    """`NAME PATH TOKENS` as `one_engine.py` takes it."""
    name, path, tokens = given.split()
    where = f"benchmark.name={name} benchmark.path={Path(path).resolve()}"
    return f"file {where} benchmark.id=row budget.policy_tokens={tokens}"


def chosen(folder: Path) -> float:
    """The smallest exploration that spends the budget, or the largest."""
    shares = {
        float(run.settings["search.exploration"]): fmean(
            float(row["policy_tokens"]) for row in run.rows
        )
        / run.settings["budget.policy_tokens"]
        for run in read_runs([folder])
    }
    print("share of the budget by exploration:", dict(sorted(shares.items())), flush=True)
    return min((e for e, share in shares.items() if share >= SPENT), default=max(EXPLORATIONS))


def main() -> None:
    """Start the engines, choose the exploration meanwhile, and wait for all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--runs", type=Path, required=True, help="gets a folder for every run")
    add("--model", required=True, help="folder of the merged policy")
    add("--held", required=True, help="file of held-out questions")
    add("--data", action="append", required=True, metavar='"NAME FILE TOKENS"')
    add("--engines", type=int, default=5, help="at once, of which three begin with mcts")
    add("--gpus", type=int, default=1, help="to spread the engines over")
    add("--n", type=int, default=64)
    add("--seconds", type=float, default=float("inf"), help="start no run after so long")
    add("overrides", nargs="*", help="settings of all runs")
    options = parser.parse_intermixed_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    options.started, options.until = 0, time.monotonic() + options.seconds
    data = [data_text(given) for given in options.data]
    searches = [search.format(n=options.n) for search in SEARCHES]
    held = f"held {options.held} {options.data[0].split()[2]}"
    trials = [start(options, "held", [f"{MCTS}{e}"], [data_text(held)]) for e in EXPLORATIONS]
    engines = []
    for turn in range(options.engines - len(trials)):  # each begins with another search
        engines.append(start(options, "runs", searches[turn:] + searches[:turn], data))
    for trial in trials:
        trial.wait()
    mcts = f"{MCTS}{chosen(options.runs / 'held')}"
    for _ in trials:
        engines.append(start(options, "runs", [mcts, *searches], data))
    for engine in engines:
        engine.wait()


if __name__ == "__main__":
    main()
