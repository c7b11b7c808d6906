"""The suite for strategies: ours pass, and every check is failed by one that is broken so."""

from __future__ import annotations

import asyncio
import random

import pytest

from stepsearch.conf.build import build, load_config
from stepsearch.conf.options import options
from stepsearch.search.errors import PolicyError
from stepsearch.search.session import Session
from stepsearch.search.tree import ROOT
from stepsearch.testing import ConformanceError, check_strategy


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
