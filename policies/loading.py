"""Finding and loading models, tokenizers and adapters, and sharing them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from stepsearch.policies.causal import DEFAULT_CACHE_BYTES, DEFAULT_MAX_ROWS, CausalRunner
from stepsearch.policies.model import CausalModel
from stepsearch.search.errors import ConfigurationError, ModelNotFoundError

EMBEDDED = "embedded"


class Source(NamedTuple):
    """Where a model comes from.

    Attributes:
        name: as the user wrote it.
        location: a folder, or a hub name.
        revision: of the hub, None for the newest or for a folder.
    """

    name: str
    location: str
    revision: str | None

    @property
    def is_local(self) -> bool:
        """Whether it is a folder."""
        return Path(self.location).is_dir()


def find_model(model: str | Path, revision: str | None = None) -> Source:
    """Tell "embedded", a folder and a hub name apart.

    Raises:
        ModelNotFoundError: it looks like a folder, but there is none.
    """
    name = str(model)
    if name == EMBEDDED:
        from stepsearch.policies.embedded import embedded_model

        return Source(name, str(embedded_model()), None)
    path = Path(name).expanduser()
    if path.is_dir():
        return Source(name, str(path.resolve()), None)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise ModelNotFoundError(
            f"model={name}: there is no such folder. Give the folder of a transformers model"
            " (with config.json), a hub name such as Qwen/Qwen2.5-0.5B-Instruct, or"
            f' "{EMBEDDED}"'
        )
    return Source(name, name, revision)


def _not_found(source: Source, what: str, error: Exception) -> ModelNotFoundError:
    if source.is_local:
        hint = "the folder must hold config.json, the weights and the tokenizer's files"
    else:
        hint = (
            "check the name, and the network unless the model is in the hub cache"
            f" (hf download {source.location}), or give a folder, or"
            f' "{EMBEDDED}"'
        )
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ModelNotFoundError(
        f"model={source.name}: no {what} could be loaded from {source.location}: {hint}. ({first})"
    )


def load_tokenizer(model: str | Path, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a model.

    Raises:
        ModelNotFoundError: there is none.
    """
    source = find_model(model, revision)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source.location, revision=source.revision or "main", trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise _not_found(source, "tokenizer", error) from error
    return tokenizer


def pick_device(device: str) -> torch.device:
    """A device; "auto" takes the first GPU, else the CPU."""
    if device != "auto":
        try:
            return torch.device(device)
        except RuntimeError as error:
            raise ConfigurationError(
                f"device={device!r} is unknown; use auto, cpu or cuda:N"
            ) from error
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """A number format; "auto" takes float32 on a CPU, else bfloat16.

    Raises:
        ConfigurationError: it is no float format of torch.
    """
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ConfigurationError(
            f"dtype={dtype!r} is unknown; use auto, float32, bfloat16 or float16"
        )
    return found


def load_model(source: Source, device: torch.device, dtype: torch.dtype) -> CausalModel:
    """Load a decoder, with its language-model head if it has one. No remote code is run.

    Raises:
        ModelNotFoundError: it could not be loaded.
        ConfigurationError: it cannot be run on tree prefixes.
    """
    revision = source.revision or "main"
    try:
        config = AutoConfig.from_pretrained(
            source.location, revision=revision, trust_remote_code=False
        )
        architectures = config.architectures or []
        has_head = any(a.endswith(("ForCausalLM", "LMHeadModel")) for a in architectures)
        loader: Any = AutoModelForCausalLM if has_head else AutoModel
        with _quietly():
            model, report = loader.from_pretrained(
                source.location,
                revision=revision,
                dtype=dtype,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError) as error:
        raise _not_found(source, "model", error) from error
    if missing := sorted(report["missing_keys"]):
        raise ModelNotFoundError(
            f"model={source.name}: {source.location} lacks {len(missing)} weights of a"
            f" {type(model).__name__}, {missing[0]} among them, which would be random numbers; the"
            " files are not complete, or name their weights otherwise"
        )
    return CausalModel(model.to(device), source.name, lambda: _hash(source))


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the progress bars and load report of transformers: a head left aside is no news."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


_RUNNERS: weakref.WeakValueDictionary[tuple[Any, ...], CausalRunner] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


def shared_runner(
    model: str | Path,
    *,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    max_rows: int = DEFAULT_MAX_ROWS,
    fixed_shapes: bool = False,
) -> CausalRunner:
    """The runner of a base model; whoever asks for the same base gets the same runner.

    It lives as long as somebody holds it. Limits are the largest that anybody asked for.

    Raises:
        ModelNotFoundError: the model could not be loaded.
        ConfigurationError: a setting is unknown, or the model cannot be run on tree prefixes.
    """
    source = find_model(model, revision)
    place = pick_device(device)
    number = pick_dtype(dtype, place)
    # The number of rows is part of a fixed shape, so it must not grow under those who rely on it.
    shape = max_rows if fixed_shapes else None
    key = (source.location, source.revision, str(place), number, shape)
    with _LOCK:
        runner = _RUNNERS.get(key)
        if runner is None or runner.is_closed:
            runner = CausalRunner(
                load_model(source, place, number),
                cache_bytes=cache_bytes,
                max_rows=max_rows,
                fixed_shapes=fixed_shapes,
            )
            _RUNNERS[key] = runner
        else:
            runner.raise_limits(cache_bytes, max_rows)
        return runner


def model_hash(model: str | Path, revision: str | None = None) -> str | None:
    """SHA-256 that identifies a local model's weights; None for a hub name.

    The embedded model's is that of the file it was converted from, as its manifest says.
    """
    return _hash(find_model(model, revision))


def _hash(source: Source) -> str | None:
    if not source.is_local:
        return None
    folder = Path(source.location)
    manifest = folder / "manifest.json"
    if manifest.is_file():
        stored = json.loads(manifest.read_text()).get("base_sha256")
        if isinstance(stored, str):
            return stored
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
