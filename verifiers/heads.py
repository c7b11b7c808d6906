"""Scoring heads, read by name from safetensors files: no remote code is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from stepsearch.policies.model import CausalModel
from stepsearch.search.errors import ModelNotFoundError, VerifierError
from stepsearch.verifiers.formats.readout import HeadFormat

_MAX_LISTED = 12


class Layer(NamedTuple):
    """A linear layer: `weight` of shape [out, in] and `bias` of shape [out], both float32."""

    weight: Tensor
    bias: Tensor


class Head(NamedTuple):
    """Linear layers with a ReLU between them, computed in float32."""

    layers: tuple[Layer, ...]
    format: HeadFormat

    @property
    def num_parameters(self) -> int:
        """Parameters used per scored position."""
        return sum(layer.weight.numel() + layer.bias.numel() for layer in self.layers)

    def logits(self, hidden: Tensor) -> Tensor:
        """Outputs before the activation: [k, d] hidden states to [k, num_outputs], float32."""
        x = hidden.float()
        for index, (weight, bias) in enumerate(self.layers):
            x = torch.nn.functional.linear(x.relu() if index else x, weight, bias)
        return x

    def scores(self, hidden: Tensor) -> list[float]:
        """One score for each row of [k, d] hidden states; NaN where an output is not finite."""
        found: list[float] = self.values(hidden).tolist()
        return found

    def values(self, hidden: Tensor) -> Tensor:
        """The scores, [k] float32, where the hidden states are.

        A saturated activation hides an infinite output, hence the check before it.
        """
        logits, good = self.logits(hidden), self.format.good
        match self.format.activation:
            case "sigmoid":
                values = logits[:, 0].sigmoid()
            case "none":
                values = logits[:, 0]
            case "softmax":
                values = logits.softmax(dim=-1)[:, good]
            case "difference":
                classes = logits.softmax(dim=-1)
                values = classes[:, good] - classes[:, 1 - good]
        return values.where(logits.isfinite().all(dim=-1), torch.nan)


def token_head(model: CausalModel, ids: tuple[int, int]) -> Head:
    """The head that compares the logits of a good and a bad token of the language model.

    Raises:
        ConfigurationError: the model has no language-model head, or an adapter changes it.
    """
    weight, bias = model.output_rows(ids)
    layer = Layer(weight, weight.new_zeros(2) if bias is None else bias)
    return Head((layer,), HeadFormat(num_outputs=2, activation="softmax", good=0))


def read_head(folder: Path, format: HeadFormat, hidden_size: int, device: torch.device) -> Head:
    """Read a head from the safetensors files of a model's or adapter's folder.

    Args:
        folder: where the files are.
        format: which weights to take and how wide the head must be.
        hidden_size: width of the hidden states that the head reads.
        device: where the head is computed.

    Raises:
        ModelNotFoundError: the folder has no safetensors files.
        VerifierError: the head is not there, is there twice, or has another shape.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelNotFoundError(
            f"no *.safetensors file in {folder}, where the verifier's head was looked for; give "
            "the folder of a model or adapter that holds one"
        )
    layers: dict[int, dict[str, Tensor]] = {}
    names: dict[str, list[int]] = {}
    for file in files:
        for found in _find(file, format.prefix, names):
            parts = layers.setdefault(found.layer, {})
            if found.part in parts:
                raise VerifierError(
                    f"several tensors in {folder} fit format.head.prefix={format.prefix!r}, "
                    f"{found.name} among them; give a longer prefix"
                )
            parts[found.part] = found.tensor.to(device, torch.float32)
    head = _build(layers, format)
    if head is None or not _fits(head, hidden_size):
        shapes = {name: shape for name, shape in names.items() if ".layers." not in name}
        listed = ", ".join(f"{name} {shape}" for name, shape in list(shapes.items())[:_MAX_LISTED])
        raise VerifierError(
            f"no head {format.prefix}.weight from {hidden_size} to {format.num_outputs} outputs in "
            f"{folder}; tensors found outside the layers: {listed or 'none'}; set "
            "format.head.prefix and format.head.num_outputs to what the files hold"
        )
    return head


class _Found(NamedTuple):
    name: str
    layer: int
    part: str
    tensor: Tensor


def _find(file: Path, prefix: str, names: dict[str, list[int]]) -> Iterator[_Found]:
    pattern = re.compile(rf"(?:.*\.)?{re.escape(prefix)}(?:\.(\d+))?\.(weight|bias)")
    with safe_open(file, "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            names[name] = tensors.get_slice(name).get_shape()
            match = pattern.fullmatch(name)
            if match:
                yield _Found(name, int(match[1] or 0), match[2], tensors.get_tensor(name))


def _build(layers: dict[int, dict[str, Tensor]], format: HeadFormat) -> Head | None:
    if not layers or any("weight" not in parts for parts in layers.values()):
        return None
    built = []
    for _, parts in sorted(layers.items()):
        weight = parts["weight"]
        built.append(Layer(weight, parts.get("bias", weight.new_zeros(weight.shape[:1]))))
    return Head(tuple(built), format)


def _fits(head: Head, hidden_size: int) -> bool:
    width = hidden_size
    for weight, bias in head.layers:
        if weight.dim() != 2 or weight.shape[1] != width or bias.shape != weight.shape[:1]:
            return False
        width = len(weight)
    return width == head.format.num_outputs
