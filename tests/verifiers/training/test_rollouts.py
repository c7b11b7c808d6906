"""Sampling and labels by rollouts, with a policy whose every continuation is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stepsearch.search.contracts import PolicySpec, Sample, SamplingParams
from stepsearch.search.errors import ConfigurationError, PolicyError
from stepsearch.search.task import get_task
from stepsearch.search.tree import Chain
from stepsearch.search.types import Step
from stepsearch.verifiers.training.lines import read_lines, write_lines
from stepsearch.verifiers.training.monte_carlo import RolloutLabels
from stepsearch.verifiers.training.rollouts import Rollouts, sample

END = SamplingParams(until="end")


class Spoiled:
    """Continuations end right unless a step says "bad"; a share of them does by seed."""

    def __init__(self, share: float = 1.0) -> None:
        self.spec = PolicySpec(name="spoiled")
        self.share = share
        self.asked: list[tuple[str, ...]] = []
        self.fails_at: str | None = None

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Sample]:
        for request, (chain, seed) in enumerate(zip(chains, seeds, strict=True)):
            if chain.question == self.fails_at:
                raise PolicyError("it broke")
            self.asked.append(tuple(chain.texts))
            spoiled = any("bad" in text for text in chain.texts)
            right = not spoiled and seed % 1000 < 1000 * self.share
            step = Step(text="#### 1" if right else "#### 0", token_ids=(1, 2), stop="eos")
            yield Sample(request, (step,), 3)


def row(*steps: str) -> dict[str, Any]:
    told = [{"text": f"{s}\n", "token_ids": [1]} for s in steps]
    text = "".join(s["text"] for s in told)
    return {"id": "q", "problem": "p", "answer": "1", "samples": [{"text": text, "steps": told}]}


def labels(given: dict[str, Any], **settings: Any) -> tuple[list[Any], RolloutLabels]:
    policy = settings.pop("policy", Spoiled())
    task = settings.pop("task", get_task("math"))
    rollouts = Rollouts(policy=policy, sampling=END)
    label = RolloutLabels(rollouts=rollouts, task=task, **settings)
    found = asyncio.run(label(given))
    return found["solutions"][0]["labels"], label


def test_soft_and_hard_values() -> None:
    given = row("ok", "bad", "more", "#### 0")
    half = Spoiled(share=0.5)
    soft, label = labels(given, k=16, policy=half)
    assert 0 < soft[0] < 1
    assert soft[1:] == [0, 0, 0]
    assert label.rollouts.num_rollouts == 3 * 16
    assert label.rollouts.policy_tokens == 3 * 16 * 2
    hard, _ = labels(given, k=16, policy=half, value="hard")
    assert hard == [1, 0, 0, 0]


@pytest.mark.parametrize("first", range(8))
def test_bisection_finds_the_first_error_with_fewer_rollouts(first: int) -> None:
    steps = ["bad" if i == first else "ok" for i in range(7)] + ["#### 0"]
    found, label = labels(row(*steps), k=2, bisects=True)
    assert found == [1.0 if i < min(first, 7) else 0.0 for i in range(8)]
    assert label.rollouts.num_rollouts == 2 * 3 < label.num_full == 2 * 7


class Undecided(Spoiled):
    """Continuations of prefixes of some lengths end in an answer that nobody can grade."""

    def __init__(self, *lengths: int) -> None:
        super().__init__()
        self.lengths = lengths

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Sample]:
        unclear = (Step(text="#### ?", token_ids=(1,), stop="eos"),)
        async for found in super().sample(chains, seeds, params):
            is_unclear = len(chains[found.request].texts) in self.lengths
            yield found._replace(steps=unclear) if is_unclear else found


class Undeciding:
    """The task `math`, but that it cannot grade "?"."""

    def __getattr__(self, name: str) -> Any:
        return getattr(get_task("math"), name)

    def grade(self, text: str, gold: str) -> bool | None:
        return None if text.endswith("?") else get_task("math").grade(text, gold)


@pytest.mark.parametrize("bisects", [True, False])
@pytest.mark.parametrize(
    ("steps", "lengths", "expected"),
    [
        (["ok", "ok"], (1, 2), [None, None, 0]),
        (["ok", "ok", "bad", "bad"], (2,), [1, None, 0, 0, 0]),
        (["ok", "ok", "ok", "bad"], (2, 3), [1, None, None, 0, 0]),
        (["ok", "ok", "bad", "bad"], (3,), [1, 1, None, 0, 0]),
    ],
)
def test_what_cannot_be_graded_is_not_labelled(
    bisects: bool, steps: list[str], lengths: tuple[int, ...], expected: list[float | None]
) -> None:
    policy, task = Undecided(*lengths), Undeciding()
    found, _ = labels(row(*steps, "#### 0"), policy=policy, task=task, k=2, bisects=bisects)
    assert found == expected


def test_bisection_goes_round_what_cannot_be_graded() -> None:
    steps = ["ok", "ok", "ok", "ok", "ok", "bad", "bad", "#### 0"]
    found, label = labels(row(*steps), policy=Undecided(4), task=Undeciding(), k=2, bisects=True)
    assert found == [1, 1, 1, 1, 1, 0, 0, 0]
    assert label.rollouts.num_rollouts < label.num_full


def test_bisection_asks_nothing_of_a_right_solution() -> None:
    found, label = labels(row("ok", "ok", "#### 1"), bisects=True)
    assert found == [1.0, 1.0, 1.0]
    assert label.rollouts.num_rollouts == 0


def test_rollouts_need_token_ids() -> None:
    bare = {"id": "q", "problem": "p", "answer": "1", "samples": [{"text": "#### 1"}]}
    with pytest.raises(ConfigurationError, match="token_ids=true"):
        labels(bare)


@pytest.mark.parametrize("bisects", [True, False])
def test_a_sample_without_a_text_is_left_out(bisects: bool) -> None:
    """A question that fills the context has nothing else: no text, no steps, no token ids."""
    empty = {"text": "", "seed": 1, "stop": "context", "tokens": 0}
    given = row("ok", "bad", "#### 0")
    rollouts = Rollouts(policy=Spoiled(), sampling=END)
    label = RolloutLabels(rollouts=rollouts, task=get_task("math"), k=2, bisects=bisects)
    found = asyncio.run(label(given | {"samples": [empty, *given["samples"], empty]}))
    assert [solution["labels"] for solution in found["solutions"]] == [[1, 0, 0]]
    assert asyncio.run(label(given | {"samples": [empty]}))["solutions"] == []
    assert label.num_full == 2 * 2


def sampled(folder: Path, policy: Spoiled, **changes: Any) -> list[dict[str, Any]]:
    options: dict[str, Any] = {"n": 3, "seed": 0, "concurrency": 2, "token_ids": True}
    out = sample(
        policy=policy,
        policy_config={},
        questions=str(folder / "q.jsonl"),
        out=str(folder / "s.jsonl"),
        sampling=END,
        task=get_task("math"),
        **options | changes,
    )
    return sorted(read_lines(out), key=lambda found: str(found["id"]))


def test_sampling_goes_on_after_a_failure(tmp_path: Path) -> None:
    names = [f"q{i}" for i in range(4)]
    write_lines(tmp_path / "q.jsonl", ({"id": i, "problem": i, "answer": "1"} for i in names))
    policy = Spoiled(share=0.5)
    policy.fails_at = "q2"
    with pytest.raises(PolicyError, match="it broke"):
        sampled(tmp_path, policy)
    policy.fails_at = None
    done = len(policy.asked)
    found = sampled(tmp_path, policy)
    assert [r["id"] for r in found] == names
    assert 0 < done < len(policy.asked) <= done + 3 * 3
    assert found[0]["usage"] == {"rollouts": 3, "policy_tokens": 6, "prompt_tokens": 9}
    assert {len(r["samples"]) for r in found} == {3}
    assert len({s["seed"] for r in found for s in r["samples"]}) == 12
    (tmp_path / "s.jsonl").unlink()
    assert sampled(tmp_path, policy, concurrency=4) == found


def test_sampling_refuses_other_settings(tmp_path: Path) -> None:
    write_lines(tmp_path / "q.jsonl", [{"id": "a", "problem": "a", "answer": "1"}])
    sampled(tmp_path, Spoiled())
    with pytest.raises(ConfigurationError, match="other settings"):
        sampled(tmp_path, Spoiled(), seed=1)
