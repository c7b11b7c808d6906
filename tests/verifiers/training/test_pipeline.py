"""The whole pipeline on a CPU: a small model learns made problems, and a PRM is trained on it.

That the PRM chooses better than chance is not asserted: with so few solutions it does not yet.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small import save_small

from stepsearch.cli import main
from stepsearch.conf.build import build, load_config
from stepsearch.verifiers.stepwise import chain_of
from stepsearch.verifiers.training.examples import Encoded
from stepsearch.verifiers.training.lines import read_lines, write_lines
from stepsearch.verifiers.training.scorer import load_scorer, score_all

WORDS = (
    *("words.steps=[1,1]", "words.operations=+-", "words.distractors=[0,0]"),
    *("words.difficulty=[1,1]", "words.limit=2400"),
)
FORMAT = 'policy.prompt_format={system: null, separator: "\\n", final_prefix: "####"}'
CPU = ("optimisation.device=cpu", "optimisation.evaluations=1", "optimisation.checkpoints=2")
SPLIT = ("held_out=0.25",)
NUM_SAMPLED = 400


def run(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


@pytest.mark.slow
def test_pipeline(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    names = ("questions", "sampled", "samples", "labelled")
    questions, few, samples, labelled = (tmp_path / f"{n}.jsonl" for n in names)
    run("train", "prepare", f"out={questions}", *WORDS)
    rows = list(read_lines(questions))
    base = save_small(tmp_path / "base", [f"{r['problem']}\n{r['solution']}" for r in rows])
    policy, prm = tmp_path / "policy", tmp_path / "prm"
    run(
        *("train", "policy", f"questions={questions}", f"out={policy}", f"base={base}"),
        *(
            "lora.rank=0",
            "optimisation.epochs=2.4",
            "optimisation.learning_rate=3e-3",
            *CPU,
            *SPLIT,
        ),
    )
    write_lines(few, rows[:NUM_SAMPLED])
    run(
        *("sample", f"questions={few}", f"out={samples}", "n=8", f"policy.model={policy}", FORMAT),
        *("concurrency=32", "policy.max_rows=256", "policy.device=cpu", "sampling.max_tokens=60"),
    )
    run("label", f"samples={samples}", f"out={labelled}", "method=both")
    run(
        *("train", "prm", f"labelled={labelled}", f"out={prm}", f"base={policy}", *CPU, *SPLIT),
        *("optimisation.epochs=1", "optimisation.learning_rate=3e-3", "lora.rank=32"),
    )
    found = json.loads((prm / "training.json").read_text())["held_out"]
    assert found["questions"] > 60
    assert 0 < found["random"] < found["pass@8"]
    assert found["auroc"] is not None
    scores_are_those_of_training(prm, labelled)


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
