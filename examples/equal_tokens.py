r"""Searches and independent samples at equal policy tokens, with several vLLM engines on a GPU.

    python examples/equal_tokens.py --runs RUNS --model MODEL \
        --data "gsm8k gsm8k.jsonl 6197" --data "multiarith multiarith.jsonl 4359"

A file has lines with question, answer and row; the number is what mcts may write for a question, 64
times the mean tokens of a sample. The others write 64 steps side by side, which comes to as many
tokens on average: `policy_tokens` of results.csv says whether it did. All searches are done on the
first file before any on the next. MODEL is the policy's adapter merged into its base, verifiers are
the embedded ones. Each engine is a process that takes whatever run no other is at; doing it again
goes on with what is left. docs/training-log.md says how the settings were chosen.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ENGINE = Path(__file__).with_name("one_engine.py")
STAGGER = 3  # seconds between two starts, for engines take their memory one after the other
# With 8 leaves of a question at a time it takes three times as long: so on fewer questions.
MCTS = (
    "mcts search.simulations=1024 search.parallel=8 search.virtual_loss=0.5 search.exploration=1.0"
    " concurrency=64 benchmark.limit=128"
)
# Those that write n steps side by side have no limit but n, as samples have none: one at the mean
# would cut all chains of a question with long solutions off in the same step, short of the answer.
SEARCHES = tuple(
    f"{search} budget.policy_tokens=null"
    for search in (
        *("dvts search.n=64 search.width=4", "beam search.n=64 search.width=4"),
        *("rebase search.n=64", "particle search.n=64", "best_of_n search.n=64"),
        "dvts search.n=64 search.width=2",
    )
)
# What replaces a pruned chain is longer than what it was: 56 write as many tokens as 64 samples.
BY_RULE = "rebase search.n=56 budget.policy_tokens=null"
RULE_GUIDES = ("verifier.guides=[rule]", "verifier.members.rule.neutral=1.0")
SETTINGS = (
    *("policy=vllm", 'policy.prompt_format={system:null,final_prefix:"####"}'),
    *("policy.seeded=false", "policy.engine.max_length=1024", "policy.engine.max_seqs=512"),
    *("policy.engine.gpu_memory=0.1", "policy.engine.cache_bytes=5000000000", "verifier=ensemble"),
    *("verifier.members.prm.cache_bytes=8000000000", "select=weighted"),
    *("verifier.members.orm.cache_bytes=8000000000", "sampling.max_tokens=320", "concurrency=32"),
)

Process = subprocess.Popen[bytes]


def start(options: argparse.Namespace, number: int, searches: list[str], *more: str) -> Process:
    """An engine at its work."""
    command = [sys.executable, str(ENGINE), "--runs", str(options.runs / "runs")]
    command += ["--seconds", str(options.until - time.monotonic())]
    command += [part for text in options.data for part in ("--data", text)]
    command += [part for text in searches for part in ("--search", text)]
    command += [*SETTINGS, *more, f"policy.model={options.model}", *options.overrides]
    gpu = {"CUDA_VISIBLE_DEVICES": str(number % options.gpus)}
    with (options.runs / f"engine-{number}.log").open("w") as file:
        return subprocess.Popen(
            command, env=os.environ | gpu, stdout=file, stderr=subprocess.STDOUT
        )


def data_text(given: str) -> str:
    """`NAME PATH TOKENS` as `one_engine.py` takes it."""
    try:
        name, path, tokens = given.split()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{given!r} is not NAME FILE TOKENS") from None
    where = f"benchmark.name={name} benchmark.path={Path(path).resolve()}"
    return f"file {where} benchmark.id=row budget.policy_tokens={tokens}"


def main() -> None:
    """Start the engines and wait for all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--runs", type=Path, required=True, help="gets a folder for every run")
    add("--model", required=True, help="folder of the merged policy")
    add("--data", action="append", required=True, type=data_text, metavar='"NAME FILE TOKENS"')
    add("--engines", type=int, default=5, help="2 or more: one for the search the rule guides")
    add("--gpus", type=int, default=1, help="to spread the engines over")
    add("--seconds", type=float, default=float("inf"), help="start no run after so long")
    add("overrides", nargs="*", help="settings of all runs")
    options = parser.parse_intermixed_args()
    if options.gpus < 1 or options.engines < 2:
        parser.error("give --gpus 1 or more and --engines 2 or more")
    options.runs.mkdir(parents=True, exist_ok=True)
    options.until = time.monotonic() + options.seconds
    engines = [start(options, 0, [BY_RULE], *RULE_GUIDES)]
    searches = [MCTS, *SEARCHES]
    for turn in range(options.engines - 1):  # each begins with another search
        time.sleep(STAGGER)
        first = turn % len(searches)
        engines.append(start(options, turn + 1, searches[first:] + searches[:first]))
    try:
        statuses = [engine.wait() for engine in engines]
    finally:
        for engine in engines:
            engine.send_signal(signal.SIGINT)  # nothing to one that has ended
    for number, status in enumerate(statuses):
        if status:
            print(f"an engine failed: {options.runs / f'engine-{number}.log'}", file=sys.stderr)
    sys.exit(any(statuses))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
