r"""Several searches over several data sets with the models loaded once.

`stepsearch bench -m` loads them for every run, which takes a minute with vLLM. This does the same
runs, in the same folders, one after the other with one policy and one verifier. Started several
times at once, each process takes the runs that no other is at.

    python examples/one_engine.py --runs RUNS \
        --data "gsm8k benchmark.path=gsm8k/test.jsonl budget.policy_tokens=6197" \
        --data "multiarith benchmark.path=multiarith/test.jsonl budget.policy_tokens=4359" \
        --search "dvts search.n=64" --search "rebase search.n=64" \
        policy=vllm policy.adapter=embedded/policy verifier=ensemble select=weighted

What one search leaves in the caches helps the next: compare policy tokens, not prompt tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig

from stepsearch.benchmarks.bench import execute
from stepsearch.benchmarks.run_folder import BusyError
from stepsearch.conf.build import build, load_config
from stepsearch.search.errors import StepsearchError


def configurations(options: argparse.Namespace) -> Iterator[tuple[str, DictConfig]]:
    """Every search over every data set, with a name; all searches on one before the next."""
    for data, search in itertools.product(options.data, options.search):
        (strategy, *settings), (benchmark, *more) = (search.split() or [""]), (data.split() or [""])
        overrides = [f"search={strategy}", f"benchmark={benchmark}", f"runs={options.runs}"]
        config = load_config([*overrides, *options.overrides, *more, *settings], "bench")
        yield f"{search}, {config.benchmark.get('name') or benchmark}", config


def main() -> None:
    """Load, then run what no other process is at."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--runs", required=True, help="gets a folder for every run")
    add("--data", action="append", required=True, help='"BENCHMARK [SETTING=VALUE ...]"')
    add("--search", action="append", required=True, help='"NAME [SETTING=VALUE ...]"')
    add("--seconds", type=float, default=float("inf"), help="start no run after so long")
    add("overrides", nargs="*", help="settings of all runs")
    options = parser.parse_intermixed_args()
    runs, started = list(configurations(options)), time.monotonic()
    for name, config in runs:
        if any(config[part] != runs[0][1][part] for part in ("policy", "verifier")):
            parser.error(f"{name} asks for another policy or verifier than {runs[0][0]}")
    loaded: dict[str, Any] = {part: build(runs[0][1], part) for part in ("policy", "verifier")}
    print(f"models loaded in {time.monotonic() - started:.0f} s", flush=True)
    failed = False
    with contextlib.ExitStack() as stack:
        for part in filter(lambda part: hasattr(part, "close"), loaded.values()):
            stack.callback(part.close)
        for name, config in runs:
            if time.monotonic() - started > options.seconds:
                print(f"{name}: not started", flush=True)
                continue
            try:
                print(f"{name}: {execute(config, **loaded)}", flush=True)
            except BusyError as error:
                print(f"{name}: {error}", flush=True)
            except StepsearchError as error:
                failed = True
                print(f"{name}: {error}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    try:
        main()
    except StepsearchError as wrong:
        sys.exit(f"one_engine.py: {wrong}")
    except KeyboardInterrupt:
        sys.exit(130)
