"""Heads read by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from stepsearch.search.errors import ModelNotFoundError, VerifierError
from stepsearch.verifiers.formats.readout import HeadFormat
from stepsearch.verifiers.heads import Head, read_head

SCALAR = HeadFormat(num_outputs=1, activation="sigmoid")
CLASSES = HeadFormat(num_outputs=2, activation="softmax", good=1)


def read(folder: Path, format: HeadFormat, hidden_size: int = 4) -> Head:
    return read_head(folder, format, hidden_size, torch.device("cpu"))


def save(folder: Path, file: str = "model.safetensors", **shapes: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = {name.replace("__", "."): torch.randn(shape) for name, shape in shapes.items()}
    save_file(tensors, folder / file)
    return tensors


def test_a_scalar_head_is_a_sigmoid(tmp_path: Path) -> None:
    tensors = save(tmp_path, score__weight=(1, 4), score__bias=(1,), lm_head__weight=(9, 4))
    hidden = torch.randn(3, 4)
    expected = torch.sigmoid(hidden @ tensors["score.weight"].T + tensors["score.bias"])[:, 0]
    head = read(tmp_path, SCALAR)
    assert head.scores(hidden) == pytest.approx(expected.tolist(), abs=1e-7)
    assert head.num_parameters == 5


@pytest.mark.parametrize("good", [0, 1])
def test_the_good_class_is_the_one_named(tmp_path: Path, good: int) -> None:
    tensors = save(tmp_path, score__weight=(2, 4))
    hidden = torch.randn(3, 4)
    expected = torch.softmax(hidden @ tensors["score.weight"].T, dim=-1)[:, good]
    head = read(tmp_path, HeadFormat(num_outputs=2, activation="softmax", good=good))
    assert head.scores(hidden) == pytest.approx(expected.tolist(), abs=1e-7)


def test_two_layers_have_a_relu_between(tmp_path: Path) -> None:
    tensors = save(tmp_path, score__0__weight=(5, 4), score__0__bias=(5,), score__2__weight=(2, 5))
    hidden = torch.randn(3, 4)
    inner = torch.relu(hidden @ tensors["score.0.weight"].T + tensors["score.0.bias"])
    expected = torch.softmax(inner @ tensors["score.2.weight"].T, dim=-1)[:, 1]
    assert read(tmp_path, CLASSES).scores(hidden) == pytest.approx(expected.tolist(), abs=1e-7)


def test_longer_names_and_several_files_are_searched(tmp_path: Path) -> None:
    save(tmp_path, "model-1.safetensors", embed__weight=(3, 4))
    tensors = save(
        tmp_path, "model-2.safetensors", base_model__model__v_head__summary__weight=(1, 4)
    )
    head = read(tmp_path, HeadFormat(prefix="v_head.summary", num_outputs=1, activation="sigmoid"))
    assert torch.equal(head.layers[0].weight, tensors["base_model.model.v_head.summary.weight"])


def test_half_precision_weights_are_computed_in_float32(tmp_path: Path) -> None:
    weight = torch.randn(1, 4).bfloat16()
    save_file({"score.weight": weight}, tmp_path / "model.safetensors")
    hidden = torch.randn(2, 4).bfloat16()
    logits = read(tmp_path, SCALAR).logits(hidden)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, hidden.float() @ weight.float().T)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_output_that_is_not_finite_is_nan_in_its_row_only(tmp_path: Path, value: float) -> None:
    for name, format, width in (("a", SCALAR, 1), ("b", CLASSES, 2)):
        folder = tmp_path / name
        folder.mkdir()
        save(folder, score__weight=(width, 4))
        hidden = torch.ones(3, 4)
        hidden[1, 2] = value
        first, second, third = read(folder, format).scores(hidden)
        assert math.isnan(second)
        assert math.isfinite(first)
        assert first == third


@pytest.mark.parametrize(
    "shapes",
    [
        {"lm_head__weight": (9, 4)},
        {"score__weight": (2, 4)},
        {"score__weight": (1, 5)},
        {"score__bias": (1,)},
        {"score__weight": (1, 4), "score__bias": (2,)},
        {"score__weight": ()},
        {"score__0__weight": (5, 4), "score__2__weight": (1, 6)},
    ],
)
def test_a_head_missing_or_of_another_shape_names_what_was_found(
    tmp_path: Path, shapes: dict[str, Any]
) -> None:
    save(tmp_path, model__layers__0__up__weight=(3, 3), **shapes)
    with pytest.raises(VerifierError, match="from 4 to 1 outputs") as error:
        read(tmp_path, SCALAR)
    for name in shapes:
        assert name.replace("__", ".") in str(error.value)
    assert "layers.0" not in str(error.value)


def test_two_heads_that_fit_are_ambiguous(tmp_path: Path) -> None:
    save(tmp_path, a__score__weight=(1, 4), b__score__weight=(1, 4))
    with pytest.raises(VerifierError, match="give a longer prefix"):
        read(tmp_path, SCALAR)
    format = HeadFormat(prefix="b.score", num_outputs=1, activation="sigmoid")
    assert read(tmp_path, format).num_parameters == 5


def test_a_folder_without_weights_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no \*\.safetensors file"):
        read(tmp_path, SCALAR)
