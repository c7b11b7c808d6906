"""The conformance suites: ours pass, and every check is failed by a plug-in that is broken so."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.worlds import hash_verifier, random_policy

from stepsearch.conf.build import build, load_config, options
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.contracts import (
    Policy,
    Sample,
    SamplingParams,
    ScoreFailure,
    StepScores,
    Verifier,
    VerifierSpec,
)
from stepsearch.search.errors import ConfigurationError, PolicyError
from stepsearch.search.session import Session
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.tree import ROOT, Chain
from stepsearch.search.types import Step
from stepsearch.testing import ConformanceError, check_policy, check_strategy, check_verifier
from stepsearch.verifiers.ensemble import EnsembleVerifier
from stepsearch.verifiers.rule import RuleVerifier
from stepsearch.verifiers.scripted import ScriptedVerifier


def test_our_verifiers_pass() -> None:
    passed = check_verifier(RuleVerifier())
    assert "order" in passed
    assert check_verifier(hash_verifier()) == passed
    for kind in ("outcome", "prefix"):
        check_verifier(ScriptedVerifier(score_fn=lambda chain: [0.5], kind=kind))  # type: ignore[arg-type]
    judge = ScriptedVerifier(score_fn=lambda chain: [0.5], kind="outcome", name="orm")
    check_verifier(EnsembleVerifier([RuleVerifier(), judge]))
    growing = ScriptedVerifier(score_fn=lambda c: [1 / len(c)] * len(c), incremental=False)
    check_verifier(growing)


class Broken:
    """The rule, with something wrong."""

    def __init__(self, **spec: Any) -> None:
        self.rule = RuleVerifier()
        self.spec: VerifierSpec = replace(self.rule.spec, name="broken", **spec)

    def count_tokens(self, chain: Chain) -> int | None:
        return 0

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        return await self.rule.score(chains)


class Changed(Broken):
    """Changes what the rule returned."""

    def __init__(self, change: Callable[[Chain, StepScores], StepScores], **spec: Any) -> None:
        super().__init__(**spec)
        self._change = change

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        return list(map(self._change, chains, await super().score(chains)))


class Sorts(Broken):
    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        return sorted(await super().score(chains), key=lambda s: -len(s.values))


class Drops(Broken):
    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        return (await super().score(chains))[:-1] if len(chains) > 1 else []


class NeedsSome(Broken):
    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        assert chains
        return await super().score(chains)


class Negative(Broken):
    def count_tokens(self, chain: Chain) -> int | None:
        return -1 if len(chain) else 0


class Hangs(Broken):
    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        await asyncio.sleep(60)
        return []


def with_values(scores: StepScores, value: Callable[[int], float]) -> StepScores:
    return replace(scores, values=tuple(value(k) for k in range(len(scores.values))), notes=())


def only_new(chain: Chain, scores: StepScores) -> StepScores:
    return with_values(scores, lambda k: chain.num_new / 10)


def looks_ahead(chain: Chain, scores: StepScores) -> StepScores:
    return with_values(scores, lambda k: 1 / len(chain))


def raises_on_empty(chain: Chain, scores: StepScores) -> StepScores:
    if not chain.texts[0].strip():
        raise ValueError("empty step")
    return scores


BROKEN_VERIFIERS: list[tuple[str, str, Verifier]] = [
    ("spec", "spec.name is empty", Broken(range="unbounded", threshold=None)),
    ("spec", "lies outside range", Broken(threshold=2.0)),
    ("spec", "plain JSON", Broken(provenance={"model": object()})),
    ("spec", "needs range 'probability'", Broken(aggregation="product", range="unbounded")),
    ("counts", "missing: 0 scores", Changed(lambda c, s: StepScores())),
    ("counts", "not_a_number", Changed(lambda c, s: with_values(s, lambda k: math.nan))),
    ("counts", "out_of_range", Changed(lambda c, s: with_values(s, lambda k: 1.5))),
    ("counts", "give one for each", Drops()),
    ("order", "in another order", Sorts()),
    ("repeat", "second time", Changed(lambda c, s: with_values(s, lambda k: random.random()))),
    ("growth", "num_new says what is asked", Changed(only_new)),
    ("growth", "declare incremental=False", Changed(looks_ahead)),
    ("words", "aligned to the end", Changed(lambda c, s: replace(s, notes=("x",) * 9))),
    ("words", "give one a value or none", Changed(lambda c, s: replace(s, notes=("x",)))),
    ("awkward texts", "kind|'malformed'", Changed(raises_on_empty)),
    ("reserved strings", "kind 'malformed'", Broken(reserved=("<mark>",))),
    ("length", "never cut", Broken(max_length=50)),
    ("tokens", "count_tokens gives -1", Negative()),
    ("tokens", "tokens=-5 is negative", Changed(lambda c, s: replace(s, tokens=-5))),
    ("nothing", "AssertionError", NeedsSome()),
]
BROKEN_VERIFIERS[0][2].spec = replace(BROKEN_VERIFIERS[0][2].spec, name="")  # type: ignore[misc]


@pytest.mark.parametrize(("check", "message", "verifier"), BROKEN_VERIFIERS)
def test_broken_verifiers_are_told_what_to_do(check: str, message: str, verifier: Verifier) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_verifier(verifier)
    assert any(part in caught.value.failures[check] for part in message.split("|"))
    assert f"- {check}: " in str(caught.value)


def test_a_verifier_that_hangs_is_named() -> None:
    with pytest.raises(ConformanceError, match="did not come back within"):
        check_verifier(Hangs(), timeout=0.02)


def test_a_plug_in_that_blocks_ends_the_suite() -> None:
    def block(chain: Chain) -> float:
        block.calls += 1
        time.sleep(1.5 if block.calls == 1 else 0)
        return 0.5

    block.calls = 0
    with pytest.raises(ConformanceError, match="blocked the event loop") as caught:
        check_verifier(ScriptedVerifier(score_fn=block), timeout=0.1)
    assert list(caught.value.failures) == ["counts"]


def test_our_policies_pass() -> None:
    passed = check_policy(random_policy())
    assert check_policy(random_policy(latency=lambda chain, seed: 0.001)) == passed


class Meddling:
    """A good policy, with what it yields changed."""

    def __init__(
        self, change: Callable[[Sample, SamplingParams], list[Any]], policy: Policy | None = None
    ) -> None:
        self._policy = policy or random_policy()
        self.spec = self._policy.spec
        self._change = change

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Any]:
        async for sample in self._policy.sample(chains, seeds, params):
            assert isinstance(sample, Sample)
            for changed in self._change(sample, params):
                yield changed


def meddling(change: Callable[[Sample, SamplingParams], Any]) -> Meddling:
    return Meddling(lambda sample, params: [change(sample, params)])


def with_last(sample: Sample, **fields: Any) -> Sample:
    return sample._replace(steps=(*sample.steps[:-1], replace(sample.steps[-1], **fields)))


class Counter:
    """Writes something else every time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, chain: Chain, seed: int) -> Step:
        self.calls += 1
        return scripted_step(f"w{self.calls % 7} ####", "eos")


class Ignores(Meddling):
    """Takes the limits for hints."""

    def __init__(self) -> None:
        super().__init__(lambda sample, params: [sample])

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Any]:
        wide = replace(params, max_tokens=100, max_step_tokens=100, max_steps=100)
        async for sample in super().sample(chains, seeds, wide):
            yield sample


class Once(Meddling):
    """Cannot be asked again after its consumer stopped."""

    def __init__(self) -> None:
        super().__init__(lambda sample, params: [sample])
        self._stopped = False

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Any]:
        if self._stopped:
            raise PolicyError("the stream is broken")
        self._stopped = True
        async for sample in super().sample(chains, seeds, params):
            yield sample
        self._stopped = False


def touch(chain: Chain, seed: int) -> Step:
    if len(chain):
        chain.tree.texts[0] = "touched"
    return scripted_step(f"w{seed % 5}\n") if len(chain) < 5 else scripted_step("#### 1", "eos")


class Touches(Meddling):
    """Changes the chain that it continues."""

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Any]:
        for chain in chains:
            chain.tail = (*chain.tail[:1], *chain.tail[:1])
        async for sample in super().sample(chains, seeds, params):
            yield sample


class Weighs(Meddling):
    async def text_logprobs(self, chain: Chain, texts: Sequence[str]) -> Any:
        return ((0.5, math.nan), 0, 0)


class CountsNothing(Meddling):
    def count_prompt_tokens(self, prompt: str) -> int:
        return 0


class Nameless(Meddling):
    def __init__(self) -> None:
        super().__init__(lambda sample, params: [sample])
        self.spec = replace(self.spec, name="")


def same(sample: Sample, params: SamplingParams) -> list[Any]:
    return [sample]


ONE = scripted_step("same #### 1", "eos")
BROKEN_POLICIES: list[tuple[str, str, Any]] = [
    ("spec", "spec.name is empty", Nameless()),
    ("one step", "exactly one", meddling(lambda s, p: s._replace(steps=s.steps * 2))),
    ("one step", "is answered twice", Meddling(lambda s, p: [s, s])),
    ("one step", "were not answered", Meddling(lambda s, p: [s] if s.request else [])),
    ("one step", "no steps", meddling(lambda s, p: s._replace(steps=()))),
    ("one step", "yield Sample", meddling(lambda s, p: tuple(s))),
    ("one step", "numbers from 0 on", meddling(lambda s, p: s._replace(prompt_tokens=-1))),
    ("one step", "is not one of", meddling(lambda s, p: with_last(s, stop="done"))),
    ("one step", "has no tokens", meddling(lambda s, p: with_last(s, token_ids=()))),
    ("one step", "must be 0 or less", meddling(lambda s, p: with_last(s, logprob=0.7))),
    (
        "to the end",
        "only the last may end",
        meddling(
            lambda s, p: s._replace(steps=tuple(replace(step, stop="eos") for step in s.steps))
        ),
    ),
    ("limits", "budgets are hard", Ignores()),
    ("same seed", "other steps", ScriptedPolicy(Counter())),
    ("different seeds", "all give the same chain", ScriptedPolicy(lambda chain, seed: ONE)),
    ("continuing", "read only", Touches(same, ScriptedPolicy(touch))),
    ("stopping early", "stream is broken", Once()),
    (
        "nothing",
        "no samples",
        Meddling(same, ScriptedPolicy(lambda chain, seed: ONE)),
    ),
    ("prompt", "count it", CountsNothing(same)),
    ("weighing", "log-probability", Weighs(same)),
]


class Always(Meddling):
    """Answers even where nothing was asked."""

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Any]:
        yield Sample(0, (ONE,), 0, 0)
        if chains:
            async for sample in super().sample(chains[1:], seeds[1:], params):
                yield sample._replace(request=sample.request + 1)


BROKEN_POLICIES[-3] = ("nothing", "no samples", Always(same))


@pytest.mark.parametrize(("check", "message", "policy"), BROKEN_POLICIES)
def test_broken_policies_are_told_what_to_do(check: str, message: str, policy: Any) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_policy(policy)
    assert message in caught.value.failures[check]


@pytest.mark.parametrize("name", options("search"))
def test_our_strategies_pass(name: str) -> None:
    assert "failed scores" in check_strategy(build(load_config([f"search={name}"]), "search"))


class Plain:
    """Grows a chain of single steps; what it does wrong is in its subclasses."""

    async def run(self, session: Session) -> None:
        nodes = [ROOT]
        while nodes and not session.exhausted:
            nodes = await self.grow(session, nodes)

    async def grow(self, session: Session, nodes: list[int]) -> list[int]:
        groups = await session.expand(nodes, 2)
        children = [child for group in groups for child in group]
        open_ = [
            child
            for child in children
            if not session.tree.is_terminal(child) and self.likes(session, child)
        ]
        return open_[:2]

    def likes(self, session: Session, node: int) -> bool:
        return session.value(node) is not None or "scripted" not in session.tree.scores


class Quits(Plain):
    async def run(self, session: Session) -> None:
        await session.expand([ROOT], 1)


class NeverStops(Plain):
    async def run(self, session: Session) -> None:
        while True:
            await session.expand([ROOT], 1)


class Spins(Plain):
    async def run(self, session: Session) -> None:
        while True:
            session.value(ROOT)


class RollsDice(Plain):
    dice = random.Random(0)

    async def grow(self, session: Session, nodes: list[int]) -> list[int]:
        found = await super().grow(session, nodes)
        return self.dice.sample(found, k=min(1, len(found)))


class Races(Plain):
    """Goes on only with what is there soon."""

    async def grow(self, session: Session, nodes: list[int]) -> list[int]:
        task = asyncio.ensure_future(super().grow(session, nodes))
        for _ in range(20):
            await asyncio.sleep(0)
        is_late = not task.done()
        found = await task
        return [] if is_late else found


class KeepsState(Plain):
    def __init__(self) -> None:
        self.runs = 0

    async def run(self, session: Session) -> None:
        self.runs += 1
        await session.expand([ROOT], self.runs, until="end")


class Hopes(Plain):
    def likes(self, session: Session, node: int) -> bool:
        return True


class NeedsScores(Plain):
    async def run(self, session: Session) -> None:
        await super().run(session)
        session.tree.scores["scripted"]


class Swallows(Plain):
    async def run(self, session: Session) -> None:
        try:
            await super().run(session)
        except PolicyError:
            return


class Lingers(Plain):
    async def run(self, session: Session) -> None:
        try:
            await super().run(session)
        except asyncio.CancelledError:
            await asyncio.sleep(4)


BROKEN_STRATEGIES: list[tuple[str, str, Plain]] = [
    ("ends", "no chain was finished", Quits()),
    ("budget", "return when session.exhausted", NeverStops()),
    ("ends", "it does not end", Spins()),
    ("same seed", "session.rng only", RollsDice()),
    ("latency", "never look at a clock", Races()),
    ("side by side", "not on the strategy", KeepsState()),
    ("failed scores", "whose score failed", Hopes()),
    ("no verifier", "KeyError", NeedsScores()),
    ("policy failure", "let PolicyError pass through", Swallows()),
    ("cancelled", "CancelledError pass through", Lingers()),
]


def test_a_plain_strategy_passes() -> None:
    check_strategy(Plain())


@pytest.mark.parametrize(("check", "message", "strategy"), BROKEN_STRATEGIES)
def test_broken_strategies_are_told_what_to_do(check: str, message: str, strategy: Plain) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_strategy(strategy, timeout=20)
    assert message in caught.value.failures[check]


def test_an_answer_without_any_score_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from stepsearch.search import run
    from stepsearch.search.select import Choice
    from stepsearch.search.types import Candidate

    chosen = Choice(Candidate(node=1, answer="7", score=0.0, stop="eos"), 0.0)
    monkeypatch.setattr(run, "choose", lambda *args: chosen)
    with pytest.raises(ConformanceError) as caught:
        check_strategy(Plain())
    assert "chosen without any score" in caught.value.failures["nothing scored"]


def test_a_failure_that_is_a_number_is_one_or_the_other() -> None:
    failure = ScoreFailure("missing", "x")
    both = Changed(lambda c, s: replace(s, failure=failure))
    with pytest.raises(ConformanceError, match="must get its scores"):
        check_verifier(both)


@pytest.mark.parametrize(
    ("check", "kind"),
    [(check_policy, "policy"), (check_verifier, "verifier"), (check_strategy, "strategy")],
)
def test_a_class_is_no_object(check: Any, kind: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"check_{kind}\(Beam\(...\)\)"):
        check(Beam)
