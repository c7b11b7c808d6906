"""Trainings on a tiny model: they learn, go on where they were stopped, and load as they say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from support.tiny import save_tiny

from stepsearch.cli import main
from stepsearch.conf.build import build, load_config
from stepsearch.conf.stages import load_stage
from stepsearch.search.errors import ConfigurationError, ModelNotFoundError
from stepsearch.verifiers.formats.outcome import OutcomeFormat
from stepsearch.verifiers.formats.readout import HeadFormat
from stepsearch.verifiers.formats.spec import StepFormat
from stepsearch.verifiers.stepwise import chain_of
from stepsearch.verifiers.trained import TrainedVerifier
from stepsearch.verifiers.training import trainer
from stepsearch.verifiers.training.lines import write_lines
from stepsearch.verifiers.training.policy import PolicySettings, train_policy
from stepsearch.verifiers.training.scorer import ScorerSettings, train_orm, train_prm
from stepsearch.verifiers.training.trainer import Lora, Optimisation

HEAD = HeadFormat(num_outputs=1, activation="sigmoid")
STEP = StepFormat(name="line", prompt="chat", mark="\n", head=HEAD)
WHOLE = OutcomeFormat(name="answered", head=HEAD)
LORA = Lora(rank=4, alpha=8)
CPU = Optimisation(
    epochs=10, batch_size=8, learning_rate=2e-2, device="cpu", evaluations=2, checkpoints=4
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Solutions that are right when they say yes."""

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(12):
            solutions = [
                {"steps": ["so", w], "labels": [None, v], "outcome": v, "answer": w}
                for w, v in (("yes", 1.0), ("no", 0.0))
            ]
            yield {"id": f"q{number}", "problem": f"Is it {number}?", "solutions": solutions}

    path = tmp_path_factory.mktemp("data") / "labelled.jsonl"
    write_lines(path, rows())
    return path


def settings(base: Path, labelled: Path, out: Path, **changes: Any) -> ScorerSettings:
    given: dict[str, Any] = {"held_out": 0.3, "lora": LORA, "optimisation": CPU} | changes
    return ScorerSettings(labelled=[str(labelled)], out=str(out), base=str(base), **given)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["prm", "orm"])
def test_scorers_learn_and_load_by_their_path(
    kind: str, base: Path, labelled: Path, tmp_path: Path
) -> None:
    given = settings(base, labelled, tmp_path / kind)
    out = train_prm(given, STEP) if kind == "prm" else train_orm(given, WHOLE)
    record = json.loads((out / "training.json").read_text())
    assert record["held_out"]["auroc"] == 1
    assert record["held_out"]["best@2"] == 100
    assert record["held_out"]["random"] == 50
    override = [f"verifier.model={out}", "verifier.selfcheck=false", "verifier.device=cpu"]
    verifier = build(load_config(["verifier=trained", *override]), "verifier")
    assert verifier.spec.name == kind
    assert TrainedVerifier.declare(model=out).kind == verifier.spec.kind
    chains = [chain_of("Is it 99?", ["so", word]) for word in ("yes", "no")]
    right, wrong = asyncio.run(verifier.score(chains))
    assert right.values[-1] > 0.5 > wrong.values[-1]
    again = train_prm(given, STEP) if kind == "prm" else train_orm(given, WHOLE)
    assert json.loads((again / "training.json").read_text()) == record


@pytest.mark.slow
def test_a_stopped_training_goes_on(
    base: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_prm(settings(base, labelled, tmp_path / "whole"), STEP)
    given = settings(base, labelled, tmp_path / "stopped")
    save = trainer.StageTrainer._save
    saved = 0

    def stop(self: Any, *rest: Any) -> None:
        nonlocal saved
        save(self, *rest)
        saved += 1
        if saved == 3:  # within the third checkpoint, which is then not complete
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer.StageTrainer, "_save", stop)
    with pytest.raises(KeyboardInterrupt):
        train_prm(given, STEP)
    monkeypatch.undo()
    out = train_prm(given, STEP)
    first, second = (load_file(f / "adapter_model.safetensors") for f in (whole, out))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert (tensor.float() - second[name].float()).abs().max() < 0.02, name


def questions(folder: Path) -> Path:
    rows = [
        {"id": f"q{i}", "problem": "Say it.", "answer": "7", "solution": "It is 7.\n#### 7"}
        for i in range(8)
    ]
    write_lines(folder / "q.jsonl", rows)
    return folder / "q.jsonl"


def policy_settings(base: Path, folder: Path, **changes: Any) -> PolicySettings:
    given: dict[str, Any] = {"held_out": 0.0, "lora": LORA, "optimisation": CPU} | changes
    out = str(folder / "policy")
    return PolicySettings(questions=[str(questions(folder))], out=out, base=str(base), **given)


def test_policies_load_by_their_path(base: Path, tmp_path: Path) -> None:
    given = policy_settings(base, tmp_path)
    out = train_policy(given, {"system": None, "final_prefix": "####"})
    losses = [
        e["loss"] for e in json.loads((out / "training.json").read_text())["history"] if "loss" in e
    ]
    assert losses[-1] < 0.5 * losses[0]
    assert train_policy(given, {"system": None, "final_prefix": "####"}) == out
    other = replace(given, optimisation=replace(CPU, epochs=99))
    with pytest.raises(ConfigurationError, match=r"optimisation\.epochs"):
        train_policy(other, {"system": None, "final_prefix": "####"})
    with pytest.raises(ConfigurationError, match="kind"):
        train_prm(settings(base, questions(tmp_path), out), STEP)
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] is None
    override = [f"policy.model={base}", f"policy.adapter={out}", "policy.device=cpu"]
    policy = build(load_config(["policy=transformers", *override]), "policy")
    assert policy.spec.provenance["prompt_format"]["final_prefix"] == "####"
    other = save_tiny(tmp_path / "other", "llama", seed=1)
    with pytest.raises(ConfigurationError, match="belongs to a base of hash"):
        build(
            load_config(["policy=transformers", f"policy.model={other}", *override[1:]]), "policy"
        )


def test_an_evaluation_at_an_epochs_end_is_made_once(base: Path, tmp_path: Path) -> None:
    given = policy_settings(
        base,
        tmp_path,
        held_out=0.5,
        optimisation=Optimisation(epochs=2, batch_size=1, evaluations=2, device="cpu"),
    )
    out = train_policy(given, {"system": None, "final_prefix": "####"})
    record = json.loads((out / "training.json").read_text())
    steps = [e["step"] for e in record["history"] if "took" in e]
    assert steps == [record["examples"], 2 * record["examples"]]


def test_a_training_of_one_step_learns(base: Path, tmp_path: Path) -> None:
    once = Optimisation(epochs=1, batch_size=8, device="cpu")
    out = train_policy(policy_settings(base, tmp_path, optimisation=once), {"system": None})
    weights = load_file(out / "adapter_model.safetensors")
    assert json.loads((out / "training.json").read_text())["history"][-1]["step"] == 1
    assert any(weights[name].any() for name in weights if "lora_B" in name)


@pytest.mark.parametrize(
    ("batch", "micro", "passes"), [(32, None, 1), (32, 8, 4), (32, 7, 8), (5, 3, 5), (4, 8, 1)]
)
def test_passes_of_a_step_are_alike(batch: int, micro: int | None, passes: int) -> None:
    assert Optimisation(batch_size=batch, micro_batch=micro).num_passes == passes


def test_a_step_in_several_passes_is_the_same_step(base: Path, tmp_path: Path) -> None:
    found = []
    for micro in (None, 8, 2):
        optimisation = replace(CPU, epochs=2, micro_batch=micro)
        given = policy_settings(base, tmp_path, optimisation=optimisation)
        out = train_policy(replace(given, out=str(tmp_path / str(micro))), {"system": None})
        found.append(load_file(out / "adapter_model.safetensors"))
    at_once, again, parts = found
    assert all(torch.equal(at_once[name], again[name]) for name in at_once), "a seed fixes it all"
    for name, value in at_once.items():
        torch.testing.assert_close(parts[name].float(), value.float(), atol=2e-3, rtol=2e-2)


def test_going_on_from_an_adapter_begins_with_its_weights(base: Path, tmp_path: Path) -> None:
    given = policy_settings(base, tmp_path)
    out = train_policy(given, {"system": None})
    model = trainer.with_lora(trainer.load_base(str(base), "cpu"), Lora(rank=99, start=str(out)))
    assert isinstance(model, PeftModel)
    stored = load_file(out / "adapter_model.safetensors")
    named = {n.replace(".default", ""): p for n, p in model.named_parameters() if "lora_" in n}
    assert named.keys() == stored.keys()
    assert all(bool((named[n] == t.float()).all()) for n, t in stored.items())


@pytest.mark.parametrize("kind", ["prm", "orm"])
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"labels": [1, 7]}, "7 is no label"),
        ({"labels": [1, "x"]}, "'x' is no label"),
        ({"labels": [True, -0.1]}, "True is no label"),
        ({"labels": [None, float("nan")]}, "nan is no label"),
        ({"outcome": 5}, "5 is no label"),
    ],
)
def test_labels_that_are_none(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    changes: dict[str, Any],
    told: str,
) -> None:
    good: dict[str, Any] = {"steps": ["a", "b"], "labels": [0.5, None], "outcome": None}
    rows = [{"id": "q", "problem": "p", "solutions": [s]} for s in (good, good | changes)]
    path = tmp_path / "l.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["train", kind, f"labelled={path}", f"out={tmp_path}/out"]) == 2
    error = capsys.readouterr().err
    assert f"stepsearch: {path}, row 2: {told}; a label is a number from 0 to 1, or null" in error
    assert error.count("\n") == 1


def test_settings_that_do_not_fit(base: Path, labelled: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="labelled has no value"):
        load_stage("prm", [f"out={tmp_path}"])
    with pytest.raises(ConfigurationError, match=r"optimisation\.epochs"):
        load_stage("prm", [f"out={tmp_path}", "labelled=x", "optimisation.epochs=0"])
    with pytest.raises(ConfigurationError, match="there is no such setting"):
        load_stage("prm", [f"out={tmp_path}", "labelled=x", "optimisation.epoch=1"])
    with pytest.raises(ConfigurationError, match="held_out"):
        settings(base, labelled, tmp_path, held_out=1.0)
    with pytest.raises(ModelNotFoundError, match=r"verifier\.json"):
        TrainedVerifier(model=tmp_path)
