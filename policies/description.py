"""What the files of a model tell about it, when another process runs it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, GenerationConfig

from stepsearch.policies.adapters import num_parameters
from stepsearch.policies.loading import find_model, model_hash
from stepsearch.search.errors import ModelNotFoundError


class Description(NamedTuple):
    """A model, its weights unread.

    Attributes:
        name: as the user wrote it.
        location: a folder or a hub name.
        revision: of a hub model; its commit where the configuration tells.
        eos_ids: tokens that the model's settings call an end.
        num_parameters: of the decoder and, if it has one, its language-model head; None where
            transformers does not know the architecture.
        max_positions: longest sequence; None when the configuration does not tell.
        model_hash: of a local model's weights.
    """

    name: str
    location: str
    revision: str | None
    eos_ids: frozenset[int]
    num_parameters: int | None
    max_positions: int | None
    model_hash: str | None


def describe(model: str | Path, revision: str | None = None) -> Description:
    """Read what a model's configuration tells.

    Raises:
        ModelNotFoundError: there is no configuration.
    """
    source = find_model(model, revision)
    pinned = source.revision or "main"
    try:
        config = AutoConfig.from_pretrained(
            source.location, revision=pinned, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelNotFoundError(
            f"model={source.name}: no configuration could be loaded from {source.location}: give"
            f' a folder with config.json, a hub name, or "embedded" ({error})'
        ) from error
    settings = [config]
    with contextlib.suppress(OSError, ValueError):  # many models have none
        settings.append(GenerationConfig.from_pretrained(source.location, revision=pinned))
    eos: set[int] = set()
    for one in settings:
        ids = getattr(one, "eos_token_id", None)
        eos.update([ids] if isinstance(ids, int) else ids or [])
    return Description(
        name=source.name,
        location=source.location,
        revision=getattr(config, "_commit_hash", None) or source.revision,
        eos_ids=frozenset(eos),
        num_parameters=_count(config),
        max_positions=getattr(config, "max_position_embeddings", None),
        model_hash=model_hash(model, revision),
    )


def _count(config: object) -> int | None:
    """Parameters, counted on a model without storage."""
    architectures = getattr(config, "architectures", None) or []
    has_head = any(str(a).endswith(("ForCausalLM", "LMHeadModel")) for a in architectures)
    loader = AutoModelForCausalLM if has_head else AutoModel
    try:
        with torch.device("meta"):
            model = loader.from_config(config)  # type: ignore[no-untyped-call]
        return num_parameters(model)
    except (ValueError, KeyError, ImportError):
        return None
