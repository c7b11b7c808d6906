"""Engine tax: the wall time of a search over that of plain generation of the same tokens.

The raw run is one `LLM.generate` with the same engine limits which is given every prefix that the
search continued and writes as many tokens behind each; the faster of a run with a seed per request
and one without. The scorer is free. `path` is how many tokens a search must write one after the
other: a step waits for all candidates of the step before. The raw run's is its longest request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from stepsearch.benchmarks.perf.gpu_setup import (
    SAMPLING,
    WARM,
    Timed,
    chance,
    engine_settings,
    make_policy,
    say,
    search,
    strategies,
    warm_candidates,
    warm_up,
)
from stepsearch.policies.vllm import VllmPolicy
from stepsearch.policies.vllm_engine import EngineSettings, engine_arguments
from stepsearch.search.tree import ROOT, Tree
from stepsearch.verifiers.scripted import ScriptedVerifier

AIMS = {"best_of_n": 1.05, "beam": 1.25, "dvts": 1.25, "mcts": 1.25}
AIMED = ("0.5b", "1.5b")
COLUMNS = "{:<9}{:<11}{:>4}{:>10}{:>9}{:>10}{:>9}{:>9}{:>11}{:>8}{:>9}{:>9}  {}"
HEAD = COLUMNS.format(
    *("model", "search", "P", "tokens", "requests", "path", "search s", "raw s", "raw seeded"),
    *("tax", "aim", "rate", "processor time over wall time"),
)


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
    path: int
    longest: int
    seconds: float
    host: str
    raw: float = 0.0
    raw_seeded: float | None = None

    @property
    def tax(self) -> float:
        """Wall time of the search over that of the faster raw run."""
        return self.seconds / min(self.raw, self.raw_seeded or self.raw)

    def line(self) -> str:
        """The row as text."""
        seeded = "-" if self.raw_seeded is None else f"{self.raw_seeded:.2f}"
        aim = AIMS[self.search] if self.concurrency >= 64 and self.model in AIMED else None
        verdict = "" if aim is None else f"<={aim}" if self.tax <= aim else f">{aim}!"
        rate = f"{self.tokens / self.seconds:.0f}/s"
        values = (self.model, self.search, self.concurrency, self.tokens, self.requests)
        path = f"{self.path}/{self.longest}"
        times = (f"{self.seconds:.2f}", f"{self.raw:.2f}", seeded, f"{self.tax:.3f}")
        return COLUMNS.format(*values, path, *times, verdict, rate, self.host)


def run_searches(
    folder: Path, model: str, searches: Sequence[str], loads: Sequence[int], n: int
) -> list[tuple[Row, Replay]]:
    """Time every search at every number of concurrent problems."""
    policy = make_policy(folder, engine_settings(model))
    try:
        warm_up(policy, free(), model)
        found = []
        for load in loads:
            for name in searches:
                surplus = policy.num_surplus
                timed = search(policy, free(), strategies(n)[name], load, name)
                found.append(_row(policy, model, name, timed, policy.num_surplus - surplus))
        return found
    finally:
        policy.close()


def free() -> ScriptedVerifier:
    """A verifier that costs nothing."""
    return ScriptedVerifier(score_fn=chance)


def _row(
    policy: VllmPolicy, model: str, name: str, timed: Timed, surplus: int
) -> tuple[Row, Replay]:
    replay, path = Replay([], []), 0
    for solution in timed.solutions:
        _record(policy, solution.tree, name == "best_of_n", replay)
        path = max(path, _path(solution.tree))
    longest = max(replay.tokens)
    row = Row(
        model=model,
        search=name,
        concurrency=len(timed.solutions),
        tokens=sum(replay.tokens),
        surplus=surplus,
        requests=len(replay.tokens),
        path=longest if name == "best_of_n" else path,
        longest=longest,
        seconds=timed.seconds,
        host=timed.host(),
    )
    say(
        f"  {name} P={row.concurrency}: {row.tokens} tokens in {row.seconds:.2f} s,"
        f" {surplus} left out; {row.host}"
    )
    return row, replay


def _record(policy: VllmPolicy, tree: Tree, whole_chains: bool, replay: Replay) -> None:
    """What the search asked for: whole chains, or a step behind every prefix."""
    prompt = list(policy.prompt_ids(tree.prompt))
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


def _path(tree: Tree) -> int:
    """Tokens that had to be written one after the other, waits for siblings included."""
    slowest: dict[int, int] = {}
    for node in range(1, len(tree)):
        parent = tree.parent[node]
        slowest[parent] = max(slowest.get(parent, 0), tree.num_tokens[node])
    ends = {ROOT: 0}
    for node in range(1, len(tree)):
        parent = tree.parent[node]
        ends[node] = ends[parent] + slowest[parent]
    return max(ends.values())


def run_raw(folder: Path, model: str, found: Sequence[tuple[Row, Replay]]) -> Iterator[Row]:
    """Time plain generation of the same tokens."""
    from vllm import LLM

    given = engine_arguments(EngineSettings(model=str(folder), **engine_settings(model)))
    start = time.perf_counter()
    llm = LLM(**given)
    say(f"  the raw engine of {model} started in {time.perf_counter() - start:.0f} s")
    rows = WARM * warm_candidates(model)
    for is_seeded in (False, True):
        _raw(llm, Replay([[5] * 20] * rows, [32] * rows), seeded=is_seeded)
    is_seeded_faster: bool | None = None
    for row, replay in found:
        if is_seeded_faster is None or row.concurrency >= 64:
            plain, seeded = _raw(llm, replay, seeded=False), _raw(llm, replay, seeded=True)
            is_seeded_faster = seeded < plain
        elif is_seeded_faster:
            plain = seeded = _raw(llm, replay, seeded=True)
        else:
            plain, seeded = _raw(llm, replay, seeded=False), None
        done = replace(row, raw=plain, raw_seeded=seeded)
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
