"""Engine tax: the wall time of a search over that of plain generation of the same tokens.

The raw run is one `LLM.generate` with the same engine limits which is given every prefix that the
search continued and writes as many tokens behind each; with a seed per request and without. The
scorer is free.

Both engines are on the card, and one of them waits while the other works. With the largest number
of problems there are rounds, each from empty prefix caches: a round is a search and then both kinds
of raw run of what this very search wrote, in turns one or the other first, and every search has had
its round before one gets the next. So a drift of the machine meets both sides of a ratio. With
fewer problems there is one round, and one kind of raw run, the one that was faster.

What the columns say: `tax` is the median of the rounds' ratios to the raw run, of the kind with the
smaller median, and in brackets the range. `path` is how many tokens a search must write one after
the other, since a step waits for all candidates of the step before; the raw run's is its longest
request; both are of the first round, as are the requests. `passes` (forward passes of the engine)
and `rows` (mean of a pass) are of search / raw run; these, the tokens and the processor time are of
the round with the median ratio.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    HALF,
    SAMPLING,
    WARM,
    chance,
    engine_settings,
    make_policy,
    say,
    search,
    starting,
    strategies,
    warm_candidates,
    warm_up,
)
from stepsearch.policies.vllm import VllmPolicy
from stepsearch.policies.vllm_engine import EngineSettings, engine_arguments
from stepsearch.verifiers.scripted import ScriptedVerifier

Kinds = Sequence[bool]
"""Whether raw runs have a seed per request; of one kind or of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured of one model.

    Attributes:
        searches: names of searches.
        problems: numbers of concurrent problems.
        n: candidates of a search.
        rounds: with the largest number of problems.
        until: on the clock of `time.perf_counter`, when no round but a first one is to end later.
    """

    searches: Sequence[str]
    problems: Sequence[int]
    n: int
    rounds: int
    until: float

    def rounds_at(self, load: int) -> int:
        """Rounds with as many problems."""
        return self.rounds if load == max(self.problems) else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Two engines with equal limits and their counters."""

    policy: VllmPolicy
    counter: PassCounter
    llm: Any
    raw_counter: PassCounter


def free() -> ScriptedVerifier:
    """A verifier that costs nothing."""
    return ScriptedVerifier(score_fn=chance)


def tax_rows(folder: Path, model: str, plan: Plan) -> list[Row]:
    """Every search at every number of concurrent problems, the largest first."""
    policy = make_policy(folder, engine_settings(model, HALF))
    try:
        llm = _raw_engine(folder, model)
        with counted_policy(policy) as counter, counted_llm(llm) as raw_counter:
            engines = Engines(policy=policy, counter=counter, llm=llm, raw_counter=raw_counter)
            _warm_up(engines, model)
            return _measured(engines, model, plan)
    finally:
        policy.close()


def _raw_engine(folder: Path, model: str) -> Any:
    from vllm import LLM

    given = engine_arguments(EngineSettings(model=str(folder), **engine_settings(model, HALF)))
    with starting(f"the raw engine of {model}"):
        return LLM(**given)


def _warm_up(engines: Engines, model: str) -> None:
    warm_up(engines.policy, free(), model)
    num = WARM * warm_candidates(model)
    for is_seeded in (False, True):
        _raw(engines, Replay([(5,) * 20] * num, [32] * num), seeded=is_seeded)


def _measured(engines: Engines, model: str, plan: Plan) -> list[Row]:
    kinds: Kinds = (False, True)
    done: list[Row] = []
    for load in sorted(plan.problems, reverse=True):
        rows: dict[str, Row] = {}
        for name in in_rounds(plan.rounds_at(load), plan.searches, plan.until):
            row = rows.get(name, Row(model=model, search=name, concurrency=load))
            rows[name] = _round(engines, row, plan.n, kinds)
        done += rows.values()
        if len(kinds) > 1:
            kinds = (_faster_kind(done),)
    return done


def _round(engines: Engines, row: Row, n: int, kinds: Kinds) -> Row:
    """The row with one more round."""
    row, replay = _search(engines, row, n)
    for is_seeded in kinds if len(row.runs) % 2 else reversed(kinds):
        run = _raw(engines, replay, seeded=is_seeded)
        kind = "seeded" if is_seeded else "unseeded"
        say(f"  raw {row.search} P={row.concurrency}, {kind}: {run.line()}")
        if is_seeded:
            row = replace(row, raw_seeded=(*row.raw_seeded, run))
        else:
            row = replace(row, raw=(*row.raw, run))
    say(row.line())
    return row


def _search(engines: Engines, row: Row, n: int) -> tuple[Row, Replay]:
    """The row with one more run of its search, and what that asked for."""
    name, policy, counter = row.search, engines.policy, engines.counter
    empty_policy(policy)
    counter.restart()
    surplus = policy.num_surplus
    timed = search(policy, free(), strategies(n)[name], row.concurrency, name)
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
    if not row.runs:
        longest = max(replay.tokens)
        path = longest if name == "best_of_n" else longest_path(timed.solutions)
        row = replace(row, requests=len(replay.tokens), path=path, longest=longest)
    return replace(row, runs=(*row.runs, run)), replay


def _faster_kind(rows: Sequence[Row]) -> bool:
    """Whether the runs with seeds took less time, over all searches that ran both ways."""
    seeded = sum(middle_seconds(row.raw_seeded) for row in rows)
    return seeded < sum(middle_seconds(row.raw) for row in rows)


def _raw(engines: Engines, replay: Replay, *, seeded: bool) -> Run:
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
    llm, counter = engines.llm, engines.raw_counter
    empty_llm(llm)
    counter.restart()
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    written = sum(len(output.outputs[0].token_ids) for output in outputs)
    if written != sum(replay.tokens):
        raise RuntimeError(f"the raw run wrote {written} tokens, not {sum(replay.tokens)}")
    return Run(seconds=seconds, tokens=written, passes=counter.passes, rows=counter.rows)
