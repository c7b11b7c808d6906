"""Generative verifiers: where a verdict is read, what counts as none, and what it costs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.tiny import save_tiny
from support.worlds import engine, table_policy

from stepsearch import solve
from stepsearch.conf.build import build, load_config
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.contracts import Policy, StepScores, TextLogprobs
from stepsearch.search.errors import ConfigurationError, PolicyError, VerifierError
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.tree import Chain, Tree
from stepsearch.search.types import Budget, Step
from stepsearch.verifiers.critique import VerdictFormat
from stepsearch.verifiers.ensemble import EnsembleVerifier
from stepsearch.verifiers.generative import GenerativeVerifier
from stepsearch.verifiers.rule import RuleVerifier

PROMPT = "{question}|{solution}|{number}"


def chain_of(*texts: str, num_new: int = -1) -> Chain:
    return Tree("q").chain(0, tuple(Step(text=t) for t in texts), num_new=num_new)


def writer(write: Callable[[str, int], str]) -> ScriptedPolicy:
    """Writes a critique that depends on prompt and seed, one line a step."""

    def propose(chain: Chain, seed: int) -> Step:
        lines = write(chain.prompt, seed).splitlines(keepends=True)
        is_last = len(chain) + 1 >= len(lines)
        return scripted_step(lines[len(chain)], "eos" if is_last else "step")

    return ScriptedPolicy(propose)


class Weighing:
    """A policy that also tells how likely texts are."""

    def __init__(
        self, policy: ScriptedPolicy, weigh: Callable[[Chain, str], float], room: bool = True
    ) -> None:
        self.spec = policy.spec
        self.sample = policy.sample
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self._weigh, self._room = weigh, room

    async def text_logprobs(self, chain: Chain, texts: Sequence[str]) -> TextLogprobs:
        self.asked.append((chain.text, tuple(texts)))
        values = tuple(self._weigh(chain, text) for text in texts) if self._room else ()
        return TextLogprobs(values, 5, 7)


def made(policy: Policy, **settings: Any) -> GenerativeVerifier:
    return GenerativeVerifier(policy=policy, prompt=PROMPT, **settings)


def score(verifier: GenerativeVerifier, *chains: Chain) -> list[StepScores]:
    return asyncio.run(verifier.score(chains))


def test_a_verdict_is_a_ratio_of_probabilities_behind_the_critique() -> None:
    odds = {"Verdict: correct": math.log(0.3), "Verdict: wrong": math.log(0.1)}
    policy = Weighing(
        writer(lambda prompt, seed: "Looks odd.\nVerdict: wrong\n"), lambda chain, text: odds[text]
    )
    (scores,) = score(made(policy, samples=1), chain_of("a"))
    assert scores.values == (pytest.approx(0.75),), "as likely as it is, whatever was sampled"
    assert policy.asked == [("Looks odd.\n", ("Verdict: correct", "Verdict: wrong"))]


def test_what_stands_before_the_cue_in_its_line_is_kept() -> None:
    policy = Weighing(writer(lambda prompt, seed: "So: **Verdict:** Correct."), lambda c, t: 0.0)
    (scores,) = score(made(policy, samples=1), chain_of("a"))
    assert scores.values == (0.5,)
    assert policy.asked == [("", ("So: **Verdict: correct", "So: **Verdict: wrong"))]


def test_the_last_verdict_counts_and_words_are_read_without_logprobs() -> None:
    text = "Verdict: wrong at first\nNo, I was mistaken.\nVerdict: correct\n"
    verifier = made(writer(lambda prompt, seed: text), samples=1)
    assert verifier.spec.provenance["reads"] == "words"
    (scores,) = score(verifier, chain_of("a"))
    assert scores.values == (1.0,)


def test_several_critiques_are_averaged_and_those_without_a_verdict_counted() -> None:
    def write(prompt: str, seed: int) -> str:
        return ("Verdict: correct", "Verdict: wrong", "no idea", "Verdict: perhaps")[seed % 4]

    verifier = made(writer(write), samples=64)
    (scores,) = score(verifier, chain_of("a"))
    critic = verifier.critic
    assert critic.num_critiques == 64
    assert 20 < critic.num_without_verdict < 44
    assert 0.2 < scores.values[0] < 0.8
    assert scores.notes == (f"{64 - critic.num_without_verdict} of 64 critiques held a verdict",)
    assert score(made(writer(write), samples=64), chain_of("a")) == [scores], "the same every time"


def test_no_verdict_is_a_failure_and_not_a_number() -> None:
    verifier = made(writer(lambda prompt, seed: "incorrect, I guess"), samples=3)
    good, failed = chain_of(), chain_of("a", "b")
    empty, scores = score(verifier, good, failed)
    assert empty == StepScores()
    assert scores.values == ()
    assert scores.failure is not None
    assert scores.failure.kind == "missing"
    assert scores.failure.message == (
        "step 1: none of 3 critiques held 'Verdict: correct' or 'Verdict: wrong'"
    )
    assert verifier.critic.num_without_verdict == 6


def test_each_new_step_is_judged_with_the_steps_up_to_it() -> None:
    prompts: list[str] = []

    def write(prompt: str, seed: int) -> str:
        prompts.append(prompt)
        return "Verdict: wrong" if prompt.endswith("3") else "Verdict: correct"

    verifier = made(writer(write), samples=1)
    (scores,) = score(verifier, chain_of("a\n", "b\n", "c\n", num_new=2))
    assert prompts == ["q|Step 1: a\nStep 2: b|2", "q|Step 1: a\nStep 2: b\nStep 3: c|3"]
    assert scores.values == (1.0, 0.0)
    judge = made(writer(write), kind="outcome", samples=1)
    (whole,) = score(judge, chain_of("a\n", "b\n", "c\n", num_new=2))
    assert (whole.values, judge.spec.kind) == ((0.0,), "outcome")


def test_without_critiques_the_verdict_is_asked_at_once() -> None:
    policy = Weighing(writer(lambda prompt, seed: "unused"), lambda chain, text: -len(text))
    (scores,) = score(made(policy, samples=0), chain_of("a"))
    assert policy.asked == [("", ("Verdict: correct", "Verdict: wrong"))]
    assert scores.values == (pytest.approx(1 / (1 + math.exp(2))),)
    assert (scores.tokens, scores.tokens_reused) == (5, 7)
    with pytest.raises(ConfigurationError, match="samples=1 or more"):
        made(writer(lambda prompt, seed: ""), samples=0)


def test_what_a_critique_costs_is_counted() -> None:
    policy = Weighing(writer(lambda prompt, seed: "two words\nVerdict: wrong"), lambda c, t: 0.0)
    (scores,) = score(made(policy, samples=2), chain_of("a"))
    assert scores.tokens == 2 * (0 + 4 + 5), "prompt, written, weighed"
    assert made(policy).count_tokens(chain_of("a")) is None
    limited = engine(Beam(), table_policy({}), made(policy), budget=Budget(verifier_tokens=5))
    with pytest.raises(ConfigurationError, match="does not tell its tokens"):
        limited.solve("q")


def test_no_room_in_the_context_is_too_long() -> None:
    crowded = ScriptedPolicy(lambda chain, seed: Step(text="", stop="context"))
    for verifier in (
        made(crowded),
        made(Weighing(crowded, lambda c, t: 0.0, room=False), samples=0),
    ):
        (scores,) = score(verifier, chain_of("a"))
        assert scores.failure is not None
        assert scores.failure.kind == "too_long"


def test_a_text_that_no_model_can_read_fails_alone() -> None:
    verifier = made(writer(lambda prompt, seed: "Verdict: correct"))
    bad, good = score(verifier, chain_of("a", "\ud800"), chain_of("a"))
    assert bad.failure is not None
    assert bad.failure.kind == "malformed"
    assert good.values == (1.0,)


def test_not_a_number_is_no_verdict() -> None:
    policy = Weighing(writer(lambda p, s: "Verdict: correct"), lambda chain, text: math.nan)
    (scores,) = score(made(policy), chain_of("a"))
    assert scores.failure is not None
    assert scores.failure.kind == "missing"


def test_a_broken_model_is_an_error_and_no_verdict() -> None:
    def fail(chain: Chain, seed: int) -> Step:
        raise PolicyError("gone")

    with pytest.raises(VerifierError, match="gone"):
        score(made(ScriptedPolicy(fail)), chain_of("a"))


def test_text_is_data_and_nothing_is_filled_in_twice() -> None:
    form = VerdictFormat(prompt=PROMPT)
    assert form.fill("{solution} {x}", ["{number}"]) == "{solution} {x}|Step 1: {number}|1"


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"prompt": "{question}"}, "must hold"),
        ({"good": " right", "bad": " Right now"}, "different words"),
        ({"cue": " "}, "cue is empty"),
        ({"samples": -1}, "samples=-1"),
        ({"kind": "prefix"}, "kind='prefix'"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], match: str) -> None:
    policy = writer(lambda prompt, seed: "")
    with pytest.raises(ConfigurationError, match=match):
        GenerativeVerifier(**({"policy": policy, "prompt": PROMPT} | settings))


def test_a_selection_that_does_not_fit_is_named_before_the_model_is_loaded() -> None:
    with pytest.raises(ConfigurationError, match="aggregation='mode'"):
        solve("q", verifier="critic", overrides=["aggregation=mode"])


def test_it_guides_a_search_and_decides_in_an_ensemble() -> None:
    def write(prompt: str, seed: int) -> str:
        return "Verdict: wrong" if "bad" in prompt else "Verdict: correct"

    policy = table_policy({"": ["good\n", "bad\n"], "good\n": ["1."], "bad\n": ["2."]})
    critic = made(writer(write), samples=1)
    solution = engine(Beam(n=4, width=2), policy, critic, select="best").solve("q")
    assert solution.answer == "1."
    judge = made(writer(write), kind="outcome", samples=1, name="judge")
    both = EnsembleVerifier([RuleVerifier(), judge])
    solution = engine(Beam(n=4, width=2), policy, both, select="best").solve("q")
    assert solution.answer == "1."


@pytest.mark.parametrize("name", ["critic", "judge"])
def test_by_name_with_a_real_model(name: str, tmp_path: Path) -> None:
    save_tiny(tmp_path)
    overrides = [f"verifier={name}", f"verifier.policy.model={tmp_path}", "verifier.samples=0"]
    verifier = build(load_config(overrides), "verifier")
    chain = chain_of("2 + 2 = 4\n", "done\n")
    (scores,) = score(verifier, chain)
    assert scores.failure is None
    assert all(0 < value < 1 for value in scores.values)
    assert len(scores.values) == (2 if name == "critic" else 1)
    verifier = build(load_config([*overrides[:2], "verifier.max_tokens=8"]), "verifier")
    (scores,) = score(verifier, chain)
    assert scores.failure is not None, "eight tokens of a random model hold no verdict"
