"""What search costs on vLLM, beside plain generation of the same tokens; prints one table.

    python -m stepsearch.benchmarks.perf.gpu --models 0.5b 1.5b
    python -m stepsearch.benchmarks.perf.gpu --models tiny --problems 2 --n 8     (without a GPU)

**Engine tax** is the wall time of a search over that of one `LLM.generate` with the same engine
limits which is given every prefix that the search continued and writes as many tokens behind each;
the faster of a run with a seed per request and one without. Weights are random (see
`random_model`), the scorer is free. Every stage prints its rows when it is done.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stepsearch.policies.vllm import VllmPolicy
from stepsearch.policies.vllm_engine import vllm_version
from stepsearch.search.contracts import SamplingParams, Strategy
from stepsearch.search.engine import Engine
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.dvts import Dvts
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.tree import ROOT, Tree
from stepsearch.search.types import Budget, Problem
from stepsearch.verifiers.scripted import ScriptedVerifier

AIMS = {"best_of_n": 1.05, "beam": 1.25, "dvts": 1.25, "mcts": 1.25}
SAMPLING = SamplingParams(temperature=1.0, max_step_tokens=128, max_tokens=192)
MAX_STEPS = 8
COLUMNS = "{:<6}{:<11}{:>4}{:>10}{:>9}{:>9}{:>9}{:>10}{:>8}{:>8}{:>8}"
HEAD = ("model", "search", "P", "tokens", "requests", "search s", "raw s", "raw seeded", "tax")


class Replay(NamedTuple):
    """What a raw run is asked for: prefixes, and tokens to write behind each."""

    prompts: list[list[int]]
    tokens: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; seconds of the search and of the raw runs."""

    model: str
    search: str
    concurrency: int
    tokens: int
    surplus: int
    requests: int
    seconds: float
    raw: float = 0.0
    raw_seeded: float | None = None

    @property
    def tax(self) -> float:
        """Wall time of the search over that of the faster raw run."""
        return self.seconds / min(self.raw, self.raw_seeded or self.raw)

    def line(self) -> str:
        """The row as text."""
        seeded = "-" if self.raw_seeded is None else f"{self.raw_seeded:.2f}"
        aim = AIMS[self.search] if self.concurrency >= 64 else None
        verdict = "" if aim is None else f"<={aim}" if self.tax <= aim else f">{aim}!"
        rate = f"{self.tokens / self.seconds:.0f}/s"
        values = (self.model, self.search, self.concurrency, self.tokens, self.requests)
        times = (f"{self.seconds:.2f}", f"{self.raw:.2f}", seeded, f"{self.tax:.3f}")
        return COLUMNS.format(*values, *times, verdict, rate)


def strategies(n: int) -> dict[str, Strategy]:
    """Searches of n candidates."""
    return {
        "best_of_n": BestOfN(n=n, max_steps=MAX_STEPS),
        "beam": Beam(n=n, width=4, max_steps=MAX_STEPS),
        "dvts": Dvts(n=n, width=4, max_steps=MAX_STEPS),
        "mcts": Mcts(simulations=n, width=4, parallel=8, max_steps=MAX_STEPS),
    }


def engine_settings(model: str) -> dict[str, Any]:
    """The same for the search and for the raw runs."""
    if model == "tiny":
        return {"max_length": 1024, "eager": True, "max_seqs": 64, "options": {"block_size": 32}}
    return {"max_length": 1024, "max_seqs": 1024, "max_batched_tokens": 16384, "gpu_memory": 0.85}


def run_searches(
    folder: Path, model: str, searches: Sequence[str], loads: Sequence[int], n: int
) -> list[tuple[Row, Replay]]:
    """Time every search at every number of concurrent problems."""
    start = time.perf_counter()
    policy = VllmPolicy(model=folder, prompt_format={"system": ""}, engine=engine_settings(model))
    say(f"{model}: the engine started in {time.perf_counter() - start:.0f} s")
    try:
        _search(policy, BestOfN(n=8), min(loads[0], 8), "warm-up", model)
        return [
            _search(policy, strategies(n)[name], load, name, model)
            for load in loads
            for name in searches
        ]
    finally:
        policy.close()


def _search(
    policy: VllmPolicy, strategy: Strategy, load: int, name: str, model: str
) -> tuple[Row, Replay]:
    problems = [
        Problem(text=f"{name} {load}: " + "what is left of it? " * 6 + str(i)) for i in range(load)
    ]
    engine = Engine(
        policy=policy,
        strategy=strategy,
        verifier=ScriptedVerifier(score_fn=_score),
        budget=Budget(policy_tokens=None),
        sampling=SAMPLING,
        concurrency=load,
    )
    surplus = policy.num_surplus
    start = time.perf_counter()
    solutions = list(engine.solve_many(problems))
    seconds = time.perf_counter() - start
    for solution in solutions:
        if solution.error is not None:
            raise RuntimeError(f"{name}: {solution.error}")
    replay = Replay([], [])
    for solution in solutions:
        _record(policy, solution.tree, name == "best_of_n", replay)
    row = Row(
        model=model,
        search=name,
        concurrency=load,
        tokens=sum(replay.tokens),
        surplus=policy.num_surplus - surplus,
        requests=len(replay.tokens),
        seconds=seconds,
    )
    say(f"  {name} P={load}: {row.tokens} tokens in {seconds:.2f} s, {row.surplus} left out")
    return row, replay


def _score(chain: Any) -> float:
    return zlib.crc32(chain.newest.text.encode()) / 2**32


def _record(policy: VllmPolicy, tree: Tree, whole_chains: bool, replay: Replay) -> None:
    """What the search asked for: whole chains, or a step behind every prefix."""
    prompt = list(policy._starts.prompt(tree.prompt))
    if whole_chains:
        for leaf in tree.leaves():
            replay.prompts.append(prompt)
            replay.tokens.append(len(tree.chain(leaf).token_ids))
        return
    prefixes = {ROOT: prompt}
    for node in range(1, len(tree.num_tokens)):
        if tree.num_tokens[node]:
            parent = tree.parent[node]
            if parent not in prefixes:
                prefixes[parent] = prompt + list(tree.chain(parent).token_ids)
            replay.prompts.append(prefixes[parent])
            replay.tokens.append(tree.num_tokens[node])


def run_raw(folder: Path, model: str, found: Sequence[tuple[Row, Replay]]) -> Iterator[Row]:
    """Time plain generation of the same tokens."""
    from vllm import LLM

    settings = engine_settings(model)
    names = {
        "max_length": "max_model_len",
        "max_seqs": "max_num_seqs",
        "max_batched_tokens": "max_num_batched_tokens",
        "gpu_memory": "gpu_memory_utilization",
        "eager": "enforce_eager",
    }
    options = settings.pop("options", {})
    given = {names[key]: value for key, value in settings.items()} | options
    start = time.perf_counter()
    llm = LLM(model=str(folder), generation_config="vllm", disable_log_stats=True, **given)
    say(f"{model}: the raw engine started in {time.perf_counter() - start:.0f} s")
    _raw(llm, Replay([[5] * 20] * 64, [32] * 64), seeded=False)
    is_seeded_faster: bool | None = None
    for row, replay in found:
        if is_seeded_faster is None or row.concurrency >= 64:
            plain, seeded = _raw(llm, replay, seeded=False), _raw(llm, replay, seeded=True)
            is_seeded_faster = seeded < plain
        elif is_seeded_faster:
            plain = seeded = _raw(llm, replay, seeded=True)
        else:
            plain, seeded = _raw(llm, replay, seeded=False), None
        done = Row(**asdict(row) | {"raw": plain, "raw_seeded": seeded})
        say(done.line())
        yield done


def _raw(llm: Any, replay: Replay, *, seeded: bool) -> float:
    from vllm import SamplingParams as Sampling

    params = [
        Sampling(
            max_tokens=count,
            ignore_eos=True,
            temperature=SAMPLING.temperature,
            seed=1000 + 77 * i if seeded else None,
            detokenize=False,
        )
        for i, count in enumerate(replay.tokens)
    ]
    llm.reset_prefix_cache()
    start = time.perf_counter()
    outputs = llm.generate(
        [{"prompt_token_ids": ids} for ids in replay.prompts], params, use_tqdm=False
    )
    seconds = time.perf_counter() - start
    written = sum(len(output.outputs[0].token_ids) for output in outputs)
    if written != sum(replay.tokens):
        raise RuntimeError(f"the raw run wrote {written} tokens, not {sum(replay.tokens)}")
    return seconds


def say(line: str) -> None:
    """Print at once: a run may be cut off."""
    print(line, flush=True)


def versions() -> str:
    """Card and versions, asked in a process of its own: CUDA must not start in this one."""
    script = (
        "import torch, transformers; found = torch.cuda.is_available();"
        "print(torch.cuda.get_device_name() if found else 'CPU', 'torch', torch.__version__,"
        " 'transformers', transformers.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return f"{done.stdout.strip()} vllm {vllm_version()}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["0.5b"], help="tiny, 0.5b, 1.5b")
    parser.add_argument("--searches", nargs="+", default=list(AIMS))
    parser.add_argument("--problems", nargs="+", type=int, default=[64, 8, 1])
    parser.add_argument("--n", type=int, default=64)
    asked = parser.parse_args(arguments)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    say(versions())
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as work:
        for model in asked.models:
            folder = Path(work) / model
            module = "stepsearch.benchmarks.perf.random_model"
            subprocess.run([sys.executable, "-m", module, model, str(folder)], check=True)
            say(f"{model}: written")
            found = run_searches(folder, model, asked.searches, asked.problems, asked.n)
            say(COLUMNS.format(*HEAD, "aim", "rate"))
            rows += run_raw(folder, model, found)
    say("\n" + COLUMNS.format(*HEAD, "aim", "rate"))
    for row in rows:
        say(row.line())
    if out := os.environ.get("OUT"):
        (Path(out) / "gpu.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
