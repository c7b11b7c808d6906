"""Engine tax: the wall time of a search over that of plain generation of the same tokens.

The raw run is one `LLM.generate` with the same engine limits which is given every prefix that the
search continued and writes as many tokens behind each; with a seed per request and without. The
scorer is free.

With the largest number of problems every search and both kinds of raw run are timed several times,
each from an empty prefix cache. One engine has the card at a time, so the rounds of the searches
come first and those of the raw runs after them, and within each the rounds are outermost. Equal
seeds give equal tokens only on a batch-invariant engine, so rounds of one search write almost, not
exactly, the same: the raw runs replay the first, the seconds of the others are scaled to its number
of tokens, and one that is 5% off is an error. With fewer problems there is one round, and one kind
of raw run, the one that was faster.

What the columns say: `tax` is the ratio of the medians, with the faster kind of raw run, and in
brackets the shortest search over the longest raw run and the longest over the shortest. `path` is
how many tokens a search must write one after the other, since a step waits for all candidates of
the step before; the raw run's is its longest request. `rounds`, `passes` (forward passes of the
engine) and `rows` (mean of a pass) are of search / raw run; the last two and the processor time are
of the round with the median seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from stepsearch.benchmarks.perf.gpu_engine import (
    PassCounter,
    counted_llm,
    counted_policy,
    empty_llm,
    empty_policy,
)
from stepsearch.benchmarks.perf.gpu_replay import Replay, longest_path, replay_of
from stepsearch.benchmarks.perf.gpu_rounds import Run, in_rounds, middle_seconds
from stepsearch.benchmarks.perf.gpu_row import Row
from stepsearch.benchmarks.perf.gpu_setup import (
    SAMPLING,
    WARM,
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
from stepsearch.verifiers.scripted import ScriptedVerifier

Found = tuple[Row, Replay]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured of one model.

    Attributes:
        searches: names of searches.
        problems: numbers of concurrent problems.
        n: candidates of a search.
        rounds: with the largest number of problems.
        begin: on the clock of `time.perf_counter`.
        limit: seconds behind it at which no round but a first one is to end; for the searches it is
            half of that, so that the raw runs get as many rounds.
    """

    searches: Sequence[str]
    problems: Sequence[int]
    n: int
    rounds: int
    begin: float
    limit: float

    def rounds_at(self, load: int) -> int:
        """Rounds with as many problems."""
        return self.rounds if load == max(self.problems) else 1


def free() -> ScriptedVerifier:
    """A verifier that costs nothing."""
    return ScriptedVerifier(score_fn=chance)


def run_searches(folder: Path, model: str, plan: Plan) -> list[Found]:
    """Time every search at every number of concurrent problems, the largest first."""
    policy = make_policy(folder, engine_settings(model))
    found: list[Found] = []
    try:
        with counted_policy(policy) as counter:
            warm_up(policy, free(), model)
            for load in sorted(plan.problems, reverse=True):
                found += _at_load(policy, counter, model, load, plan)
    finally:
        policy.close()
    return found


def _at_load(
    policy: VllmPolicy, counter: PassCounter, model: str, load: int, plan: Plan
) -> list[Found]:
    found: dict[str, Found] = {}
    for name in in_rounds(plan.rounds_at(load), plan.searches, plan.begin + plan.limit / 2):
        row, replay = _search(
            policy, counter, Row(model=model, search=name, concurrency=load), plan
        )
        if name in found:
            first, replay = found[name]
            row = replace(first, runs=first.runs + row.runs)
        found[name] = (row, replay)
    return list(found.values())


def _search(policy: VllmPolicy, counter: PassCounter, row: Row, plan: Plan) -> Found:
    """One round of one search."""
    name = row.search
    empty_policy(policy)
    counter.restart()
    surplus = policy.num_surplus
    timed = search(policy, free(), strategies(plan.n)[name], row.concurrency, name)
    passes, rows = counter.passes, counter.rows
    replay = replay_of(policy, name, timed.solutions)
    run = Run(
        seconds=timed.seconds,
        tokens=sum(replay.tokens),
        passes=passes,
        rows=rows,
        host=timed.host(),
    )
    left_out = policy.num_surplus - surplus
    say(f"  {name} P={row.concurrency}: {run.line()}; {left_out} tokens left out; {run.host}")
    longest = max(replay.tokens)
    row = replace(
        row,
        requests=len(replay.tokens),
        path=longest if name == "best_of_n" else longest_path(timed.solutions),
        longest=longest,
        runs=(run,),
    )
    return row, replay


def run_raw(folder: Path, model: str, found: Sequence[Found], plan: Plan) -> list[Row]:
    """Time plain generation of the same tokens; a row is printed as soon as there is one."""
    from vllm import LLM

    given = engine_arguments(EngineSettings(model=str(folder), **engine_settings(model)))
    start = time.perf_counter()
    llm = LLM(**given)
    say(f"  the raw engine of {model} started in {time.perf_counter() - start:.0f} s")
    end, kinds = plan.begin + plan.limit, [False, True]
    done: list[Row] = []
    num = WARM * warm_candidates(model)
    with counted_llm(llm) as counter:
        for is_seeded in kinds:
            _raw(llm, counter, Replay([(5,) * 20] * num, [32] * num), seeded=is_seeded)
        for load, group in groupby(found, key=lambda pair: pair[0].concurrency):
            rows: dict[str, Row] = {}
            for row, replay in in_rounds(plan.rounds_at(load), list(group), end):
                rows[row.search] = _replayed(llm, counter, rows.get(row.search, row), replay, kinds)
            done += rows.values()
            if len(kinds) > 1:
                kinds = [_faster_kind(done)]
    return done


def _replayed(
    llm: Any, counter: PassCounter, row: Row, replay: Replay, kinds: Sequence[bool]
) -> Row:
    """The row with one more raw run of each kind."""
    for is_seeded in kinds:
        run = _raw(llm, counter, replay, seeded=is_seeded)
        kind = "seeded" if is_seeded else "unseeded"
        say(f"  raw {row.search} P={row.concurrency}, {kind}: {run.line()}")
        if is_seeded:
            row = replace(row, raw_seeded=(*row.raw_seeded, run))
        else:
            row = replace(row, raw=(*row.raw, run))
    say(row.line())
    return row


def _faster_kind(rows: Sequence[Row]) -> bool:
    """Whether the runs with seeds took less time, over all searches that ran both ways."""
    seeded = sum(middle_seconds(row.raw_seeded) for row in rows)
    return seeded < sum(middle_seconds(row.raw) for row in rows)


def _raw(llm: Any, counter: PassCounter, replay: Replay, *, seeded: bool) -> Run:
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
    prompts = [{"prompt_token_ids": list(ids)} for ids in replay.prompts]
    empty_llm(llm)
    counter.restart()
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    written = sum(len(output.outputs[0].token_ids) for output in outputs)
    if written != sum(replay.tokens):
        raise RuntimeError(f"the raw run wrote {written} tokens, not {sum(replay.tokens)}")
    return Run(seconds=seconds, tokens=written, passes=counter.passes, rows=counter.rows)
