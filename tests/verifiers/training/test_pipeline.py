"""The whole pipeline on a CPU: a small model learns made problems, and its PRM beats chance.

The problems are such that a small model can see what is wrong: one subtraction of numbers up to 10,
so that there are few facts to know. The policy is stopped early: many of its samples are wrong, and
in their numbers rather than in their words. A quarter of the right answers come from wrong
equations, so that labels are outcomes, which is also what choosing is measured by. For two other
seeds, best-of-4 was above chance by 13 and 11 points and the weighted vote above majority by 13 and
9; docs/training-log.md.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from stepsearch.benchmarks.perf.small_model import save_small
from stepsearch.cli import main
from stepsearch.conf.build import build, load_config
from stepsearch.verifiers.stepwise import chain_of
from stepsearch.verifiers.training.examples import Encoded
from stepsearch.verifiers.training.lines import read_lines, write_lines
from stepsearch.verifiers.training.scorer import load_scorer, score_all

SEED = 0
WORDS = (
    *("words.steps=[1,1]", "words.operations=-", "words.distractors=[0,0]"),
    *("words.difficulty=[1,1]", "words.limit=2400", f"words.seed={SEED}"),
)
FORMAT = 'policy.prompt_format={system: null, final_prefix: "####"}'
TRAINING = (
    *("optimisation.device=cpu", "optimisation.evaluations=1", "optimisation.checkpoints=2"),
    *(f"optimisation.seed={SEED}", "held_out=0.25"),
)
POLICY = ("lora.rank=0", "optimisation.epochs=2", "optimisation.learning_rate=3e-3")
SAMPLING = ("n=4", f"seed={SEED}", "sampling.max_tokens=32")
PRM = (
    *("lora.rank=64", "lora.alpha=64", "optimisation.epochs=4"),
    *("optimisation.learning_rate=1e-3", "optimisation.batch_size=16"),
)
NUM_SAMPLED = 1200


def run(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


@pytest.mark.slow
def test_pipeline(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    questions, labelled = tmp_path / "questions.jsonl", tmp_path / "labelled.jsonl"
    policy, prm = tmp_path / "policy", tmp_path / "prm"
    run("train", "prepare", f"out={questions}", *WORDS)
    rows = list(read_lines(questions))
    texts = [f"{row['problem']}\n{row['solution']}" for row in rows]
    base = save_small(tmp_path / "base", texts, SEED)
    given = (f"questions={questions}", f"out={policy}", f"base={base}")
    run("train", "policy", *given, *TRAINING, *POLICY)
    samples = sampled(policy, rows[:NUM_SAMPLED])
    run("label", f"samples={samples}", f"out={labelled}", "method=outcome")
    given = (f"labelled={labelled}", f"out={prm}", f"base={policy}")
    run("train", "prm", *given, *TRAINING, *PRM)
    found = json.loads((prm / "training.json").read_text())["held_out"]
    assert found["questions"] > 200
    assert found["auroc"] > 0.7
    assert found["best@4"] > found["random"] + 5
    assert found["weighted@4"] > found["majority@4"] + 2
    scores_are_those_of_training(prm, labelled)


def sampled(policy: Path, questions: list[dict[str, Any]]) -> Path:
    """Samples of the questions, in an order that does not depend on which were done first."""
    few, samples, ordered = (policy.with_name(f"{n}.jsonl") for n in ("few", "samples", "ordered"))
    write_lines(few, questions)
    given = (f"questions={few}", f"out={samples}", f"policy.model={policy}", FORMAT)
    speed = ("concurrency=64", "policy.max_rows=256", "policy.device=cpu")
    run("sample", *given, *speed, *SAMPLING)
    write_lines(ordered, sorted(read_lines(samples), key=lambda row: str(row["id"])))
    return ordered


def scores_are_those_of_training(prm: Path, labelled: Path) -> None:
    """What a search reads is what was trained, and `verifier.model=PATH` is enough to load it."""
    settings = [f"verifier.model={prm}", "verifier.selfcheck=false", "verifier.device=cpu"]
    verifier: Any = build(load_config(["verifier=trained", *settings]), "verifier")
    solutions = [(row["problem"], s) for row in read_lines(labelled) for s in row["solutions"]][:20]
    chains = [chain_of(problem, s["steps"]) for problem, s in solutions]
    read = [scores.values for scores in asyncio.run(verifier.score(chains))]
    encoded = []
    for index, chain in enumerate(chains):
        one = verifier.encode(chain)
        encoded.append(Encoded(one.ids, one.positions, [None] * len(one.positions), index))
    trained = score_all(load_scorer(prm, "cpu"), encoded)
    for ours, theirs in zip(trained, read, strict=True):
        assert ours == pytest.approx(theirs, abs=2e-3)
