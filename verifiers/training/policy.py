"""Training of a policy on worked solutions: a LoRA adapter, or all weights of a small model."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepsearch.policies.loading import load_tokenizer
from stepsearch.policies.prompt import FILE_NAME, PromptEncoder, PromptFormat
from stepsearch.policies.tokenizing import encode
from stepsearch.search.errors import ConfigurationError
from stepsearch.verifiers.training.folder import (
    RECORD,
    require_same,
    save_adapter,
    save_base,
    save_record,
)
from stepsearch.verifiers.training.questions import (
    Question,
    is_held_out,
    read_questions,
    without_marks,
)
from stepsearch.verifiers.training.trainer import (
    Lora,
    Optimisation,
    load_base,
    parts_of,
    train,
    with_lora,
)

_log = logging.getLogger(__name__)
_IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """What a policy is trained on and how.

    Attributes:
        questions: files of questions with solutions.
        out: folder of the result.
        base: `embedded`, a folder or a hub name.
        held_out: share of the questions that are not trained on; their loss is shown.
        max_length: longer examples are left out and counted.
        lora: shape of the adapter.
        optimisation: how it is trained.
    """

    questions: Sequence[str]
    out: str
    base: str = "embedded"
    held_out: float = 0.07
    max_length: int = 512
    lora: Lora = field(default_factory=Lora)
    optimisation: Optimisation = field(default_factory=Optimisation)

    def __post_init__(self) -> None:
        if isinstance(self.questions, str):
            object.__setattr__(self, "questions", [self.questions])
        if not 0 <= self.held_out < 1:
            raise ConfigurationError(f"held_out={self.held_out} must lie in [0, 1)")


def train_policy(settings: PolicySettings, format: dict[str, Any] | PromptFormat) -> Path:
    """Train a policy; returns its folder, which `policy.adapter` takes.

    With `lora.rank=0` it is a whole model, which `policy.model` takes.

    Raises:
        ConfigurationError: a setting or file does not fit.
        ModelNotFoundError: the base could not be loaded.
    """
    out = Path(settings.out).expanduser()
    if (out / RECORD).is_file():
        require_same(out, "policy", settings)
        _log.info("%s: complete before, nothing was done", out)
        return out
    started = time.perf_counter()
    form = format if isinstance(format, PromptFormat) else PromptFormat.from_mapping(format)
    tokenizer = load_tokenizer(settings.base)
    torch.manual_seed(settings.optimisation.seed)  # of the adapter's first weights
    model = load_base(settings.base, settings.optimisation.device)
    encode = _Encoder(tokenizer, form)
    questions = [q for path in settings.questions for q in read_questions(path) if q.solution]
    kept, left_out = encode.all(questions, settings.max_length)
    rows = [row for q, row in kept if not is_held_out(q.group, settings.held_out)]
    held = [row for q, row in kept if is_held_out(q.group, settings.held_out)]
    _log.info("%d examples to train on, %d held out, %d too long", len(rows), len(held), left_out)
    trained = model if settings.lora.rank == 0 else with_lora(model, settings.lora)
    history = train(
        trained,
        rows,
        _collate,
        out=out,
        optimisation=settings.optimisation,
        measure=(lambda: {"loss": _loss(trained, held)}) if held else None,
    )
    peft, _ = parts_of(trained)
    out.mkdir(parents=True, exist_ok=True)
    if peft is None:
        model.config.use_cache = True
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    else:
        save_adapter(out, peft, {}, torch.bfloat16)
        save_base(out, settings.base)
    form.save(out / FILE_NAME)
    record = {
        "kind": "policy",
        "settings": asdict(settings),
        "format": form.to_mapping(),
        "examples": len(rows),
        "too_long": left_out,
        "seconds": round(time.perf_counter() - started),
        "device": str(model.device),
        "history": history,
    }
    save_record(out, record)
    return out


class _Encoder:
    """Prompt and solution as ids; the loss is on the solution and the end mark only."""

    def __init__(self, tokenizer: Any, form: PromptFormat) -> None:
        self._tokenizer = tokenizer
        self._prompt = PromptEncoder(tokenizer, form)

    def all(
        self, questions: Sequence[Question], max_length: int
    ) -> tuple[list[tuple[Question, dict[str, Any]]], int]:
        """The questions with their rows, and how many were too long."""
        rows = [(question, self._row(question)) for question in questions]
        kept = [(q, row) for q, row in rows if row["length"] <= max_length]
        return kept, len(rows) - len(kept)

    def _row(self, question: Question) -> dict[str, Any]:
        prompt = self._prompt.encode(question.problem)
        solution = encode(self._tokenizer, without_marks(question.solution), plain=True)
        ids = [*prompt, *solution, self._tokenizer.eos_token_id]
        return {"input_ids": ids, "start": len(prompt), "length": len(ids)}


def _collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    longest = max(row["length"] for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full((len(rows), longest), _IGNORED)
    for i, row in enumerate(rows):
        length, start = row["length"], row["start"]
        ids[i, :length] = torch.tensor(row["input_ids"])
        mask[i, :length] = 1
        labels[i, start:length] = ids[i, start:length]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@torch.no_grad()
def _loss(model: nn.Module, rows: Sequence[dict[str, Any]], size: int = 32) -> float:
    """Mean cross-entropy per token of held-out solutions, in nats."""
    device = next(model.parameters()).device
    total, count = 0.0, 0
    ordered = sorted(rows, key=lambda row: int(row["length"]))
    for start in range(0, len(ordered), size):
        batch = {k: v.to(device) for k, v in _collate(ordered[start : start + size]).items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(**batch).loss
        tokens = int((batch["labels"][:, 1:] != _IGNORED).sum())
        total, count = total + float(loss) * tokens, count + tokens
    return total / count
