"""What the token-level step verifier refuses, fails and says of itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.stepwise import (
    QUESTION,
    Setup,
    chain_of,
    format_of,
    score,
)

from stepsearch.search.errors import ConfigurationError, ModelNotFoundError, VerifierError
from stepsearch.verifiers.transformers import TransformersVerifier


def test_too_long_is_a_typed_failure_at_the_exact_length(base_folder: Path, line: Setup) -> None:
    texts = ["12 - 3 = 9\n", "So 9 are left.\n"]
    length = len(line.ids(QUESTION, texts))
    adapter = Path(line.verifier.spec.provenance["adapter"])
    for limit, kind in ((length, None), (length - 1, "too_long")):
        verifier = TransformersVerifier(
            model=base_folder,
            adapter=adapter,
            format=format_of("line_prm", max_length=limit),
            selfcheck=False,  # the probes are longer
        )
        assert verifier.spec.max_length == limit
        short, long = score(verifier, chain_of("9\n"), chain_of(*texts))
        assert short.failure is None
        assert (long.failure.kind if long.failure else None) == kind
        assert len(long.values) == (0 if kind else 2)
        if kind:
            assert long.failure is not None
            assert f"{length} verifier tokens" in long.failure.message
            assert verifier.count_tokens(chain_of(*texts)) == 0


def test_too_long_for_the_context_is_never_cut(setup: Setup) -> None:
    (result,) = score(setup.verifier, chain_of("word " * 600))
    assert result.failure is not None
    assert result.failure.kind == "too_long"


def test_too_long_ends_the_search_when_asked_to(classifier_folder: Path) -> None:
    verifier = TransformersVerifier(
        model=classifier_folder,
        format=format_of("trl_prm", max_length=9),
        on_too_long="fail",
        selfcheck=False,
    )
    with pytest.raises(VerifierError, match=r"prm: the chain has \d+ verifier tokens"):
        score(verifier, chain_of("a\n"))
    with pytest.raises(ConfigurationError, match="on_too_long='cut'"):
        TransformersVerifier(
            model=classifier_folder,
            format=format_of("trl_prm"),
            on_too_long="cut",  # type: ignore[arg-type]
        )


def test_a_malformed_chain_fails_alone(classifier_folder: Path) -> None:
    verifier = TransformersVerifier(
        model=classifier_folder, format=format_of("trl_prm", reserved=["[PRM]"])
    )
    good, bad = score(verifier, chain_of("a\n"), chain_of("a [PRM]\n"))
    assert good.failure is None
    assert bad.failure is not None
    assert (bad.failure.kind, bad.tokens) == ("malformed", 0)


def damaged(folder: Path, target: Path, **changes: torch.Tensor | None) -> Path:
    """A copy of an adapter's folder with other head tensors."""
    shutil.copytree(folder, target)
    file = target / "adapter_model.safetensors"
    tensors = load_file(file)
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[f"score.{name}"]
        else:
            tensors[f"score.{name}"] = tensor
    save_file(tensors, file)
    return target


def test_a_head_that_gives_nan_is_a_typed_failure(
    base_folder: Path, adapter_folder: Path, tmp_path: Path
) -> None:
    folder = damaged(adapter_folder, tmp_path / "nan", bias=torch.tensor([torch.nan]))
    settings: dict[str, Any] = {"model": base_folder, "adapter": folder}
    with pytest.raises(VerifierError, match="failed its self-check: finite, probability"):
        TransformersVerifier(**settings, format=format_of("line_prm"))
    verifier = TransformersVerifier(**settings, format=format_of("line_prm"), selfcheck=False)
    (result,) = score(verifier, chain_of("a\n"))
    assert result.failure is not None
    assert result.failure.kind == "not_a_number"
    assert result.values == ()
    assert result.tokens


def test_a_head_that_is_missing_or_too_wide_names_what_was_found(
    base_folder: Path, adapter_folder: Path, tmp_path: Path
) -> None:
    wide = damaged(adapter_folder, tmp_path / "wide", weight=torch.zeros(2, 32))
    none = damaged(adapter_folder, tmp_path / "none", weight=None, bias=None)
    for folder, found in ((wide, r"score\.weight \[2, 32\]"), (none, "none")):
        with pytest.raises(VerifierError, match=f"found outside the layers: .*{found}"):
            TransformersVerifier(model=base_folder, adapter=folder, format=format_of("line_prm"))
    with pytest.raises(VerifierError, match=r"lm_head\.weight|embed_tokens\.weight"):
        TransformersVerifier(model=base_folder, format=format_of("line_prm"))


def test_a_mark_of_other_ids_is_refused(classifier_folder: Path) -> None:
    with pytest.raises(VerifierError, match=r"format\.mark='\\n\\n' of format 'trl'"):
        TransformersVerifier(
            model=classifier_folder, format=format_of("trl_prm", mark_ids=[151651])
        )


def test_folders_that_do_not_exist_are_named(base_folder: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ModelNotFoundError, match="missing"):
        TransformersVerifier(model=missing, format=format_of("trl_prm"))
    with pytest.raises(ModelNotFoundError, match="missing"):
        TransformersVerifier(model=base_folder, adapter=missing, format=format_of("line_prm"))


def test_spec_says_what_was_loaded(setup: Setup) -> None:
    spec = setup.verifier.spec
    assert (spec.kind, spec.range, spec.incremental) == ("step", "probability", True)
    assert spec.max_length == 512
    assert spec.num_parameters
    assert spec.provenance["dtype"] == "float32"
    assert spec.provenance["format"]["mark"] == setup.verifier.format.mark
    is_chat = setup.verifier.format.prompt == "chat"
    assert bool(spec.provenance["template_hash"]) is is_chat
    assert bool(spec.provenance["adapter_hash"]) is is_chat
    json.dumps(spec.provenance)


def test_the_base_is_shared(base_folder: Path, adapter_folder: Path, line: Setup) -> None:
    other = TransformersVerifier(
        model=base_folder, adapter=adapter_folder, format=format_of("line_prm"), dtype="float32"
    )
    assert other._body.runner is line.verifier._body.runner


def test_a_closed_runner_is_an_error_not_a_score(classifier_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    shutil.copytree(classifier_folder, folder)
    verifier = TransformersVerifier(model=folder, format=format_of("trl_prm"))
    verifier._body.runner.close()
    with pytest.raises(VerifierError, match="closed"):
        score(verifier, chain_of("a\n"))


def test_a_hub_model_is_read_from_one_revision(
    classifier_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trl: Setup
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commit = "a" * 40
    repository = tmp_path / "models--someone--prm"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    shutil.copytree(classifier_folder, repository / "snapshots" / commit)
    verifier = TransformersVerifier(model="someone/prm", format=format_of("trl_prm"))
    assert verifier.spec.provenance["revision"] == commit
    (result,) = score(verifier, chain_of("9\n"))
    assert result.values == pytest.approx(trl.oracle(QUESTION, ["9\n"]), abs=1e-5)
    with pytest.raises(ModelNotFoundError, match="someone/else"):
        TransformersVerifier(model="someone/else", format=format_of("trl_prm"))
