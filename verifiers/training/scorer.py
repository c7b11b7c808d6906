"""Training of process and outcome reward models: a LoRA adapter and a scalar head on a base.

The head reads the last hidden state at every step's mark, or at the end of the solution, and is
trained with cross-entropy on labels between 0 and 1 (Cobbe et al. 2021; Lightman et al. 2023;
soft labels: Wang et al. 2024).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor, nn

from stepsearch.policies.adapters import WEIGHTS
from stepsearch.policies.loading import load_tokenizer
from stepsearch.policies.shipped import VERIFIER_FILE, find_adapter
from stepsearch.search.aggregate import aggregate
from stepsearch.search.contracts import ScoreFailure
from stepsearch.search.errors import ConfigurationError
from stepsearch.verifiers.formats.outcome import OutcomeFormat
from stepsearch.verifiers.formats.readout import HeadFormat
from stepsearch.verifiers.formats.spec import StepFormat
from stepsearch.verifiers.trained import read_spec, write_spec
from stepsearch.verifiers.training.examples import (
    Encoded,
    Labelled,
    balanced,
    encode_all,
    labelled_of,
    outcome_encoder,
    step_encoder,
)
from stepsearch.verifiers.training.folder import (
    RECORD,
    require_same,
    save_adapter,
    save_base,
    save_record,
)
from stepsearch.verifiers.training.lines import read_lines
from stepsearch.verifiers.training.measures import choice_measures, step_measures
from stepsearch.verifiers.training.questions import is_held_out
from stepsearch.verifiers.training.trainer import (
    Lora,
    Optimisation,
    load_base,
    settings_of,
    train,
    with_lora,
)

_log = logging.getLogger(__name__)
_HEAD = {"prefix": "score", "num_outputs": 1, "activation": "sigmoid", "good": 0}
_EVAL_TOKENS = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerSettings:
    """What a scorer is trained on and how.

    Attributes:
        labelled: files of labelled solutions.
        out: folder of the result.
        base: `embedded`, a folder or a hub name.
        held_out: share of the questions that are not trained on but evaluated with.
        per_class: most right and most wrong solutions of a question.
        balance: right and wrong labels weigh the same as a whole.
        max_length: longer inputs are left out and counted.
        max_evaluated: most held-out questions at the evaluations before the last.
        lora: shape of the adapter.
        optimisation: how it is trained.
    """

    labelled: Sequence[str]
    out: str
    base: str = "embedded"
    held_out: float = 0.07
    per_class: int = 8
    balance: bool = True
    max_length: int = 512
    max_evaluated: int = 150
    lora: Lora = field(default_factory=Lora)
    optimisation: Optimisation = field(default_factory=Optimisation)

    def __post_init__(self) -> None:
        if isinstance(self.labelled, str):
            object.__setattr__(self, "labelled", [self.labelled])
        if not 0 <= self.held_out < 1:
            raise ConfigurationError(f"held_out={self.held_out} must lie in [0, 1)")


class Scorer(nn.Module):
    """A body with an adapter and a linear head in float32.

    Args:
        body: the adapted causal model; its language-model head is not used.
        head: from hidden size to 1.
    """

    def __init__(self, body: PeftModel, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self._decoder: Any = [body.get_base_model().base_model]  # in a list: not a second child

    def logits(self, ids: Tensor, mask: Tensor) -> Tensor:
        """[batch, tokens] to one logit a token."""
        hidden = self._decoder[0](input_ids=ids, attention_mask=mask, use_cache=False)
        with torch.autocast(ids.device.type, enabled=False):
            found: Tensor = self.head(hidden.last_hidden_state.float()).squeeze(-1)
        return found

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, weights: Tensor
    ) -> dict[str, Tensor]:
        """The weighted mean cross-entropy over labelled positions; weight 0 means no label."""
        logits = self.logits(input_ids, attention_mask)
        losses = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return {"loss": (losses * weights).sum() / weights.sum().clamp_min(1e-6)}


def train_prm(settings: ScorerSettings, format: dict[str, Any] | StepFormat) -> Path:
    """Train a process reward model on the labels of steps; returns its folder."""
    return _train("step", settings, StepFormat.from_mapping(format))


def train_orm(settings: ScorerSettings, format: dict[str, Any] | OutcomeFormat) -> Path:
    """Train an outcome reward model on the outcomes of solutions; returns its folder."""
    return _train("outcome", settings, OutcomeFormat.from_mapping(format))


def _train(
    kind: Literal["step", "outcome"], settings: ScorerSettings, form: StepFormat | OutcomeFormat
) -> Path:
    out = Path(settings.out).expanduser()
    if (out / RECORD).is_file():
        require_same(out, kind, settings)
    if (out / VERIFIER_FILE).is_file():
        _log.info("%s: complete before, nothing was done", out)
        return out
    if form.head != HeadFormat(**_HEAD):  # type: ignore[arg-type]
        raise ConfigurationError(f"format.head must be {_HEAD}: that is what training makes")
    started = time.perf_counter()
    solutions = [s for path in settings.labelled for s in labelled_of(read_lines(path), path)]
    tokenizer = load_tokenizer(settings.base)
    if isinstance(form, StepFormat):
        encoder = step_encoder(form, tokenizer)
    else:
        encoder = outcome_encoder(form, tokenizer)
    held = [s for s in solutions if is_held_out(s.group, settings.held_out)]
    taught = [s for s in solutions if not is_held_out(s.group, settings.held_out)]
    taught = balanced(taught, settings.per_class, settings.optimisation.seed)
    examples, left_out = encode_all(taught, encoder, settings.max_length)
    tested, untested = encode_all(held, encoder, settings.max_length)
    _log.info(
        "%d of %d solutions to train on (left out: %s), %d of %d held out (left out: %s)",
        *(len(examples), len(taught), dict(left_out), len(tested), len(held), dict(untested)),
    )
    optimisation = settings.optimisation
    torch.manual_seed(optimisation.seed)
    body = with_lora(load_base(settings.base, optimisation.device), settings.lora)
    scorer = _scorer(body)
    weights = _class_weights(examples) if settings.balance else (1.0, 1.0)
    rows = [_row(example, weights) for example in examples]
    held_out = _HeldOut(scorer, form, held, tested)
    history = train(
        scorer,
        rows,
        _collate,
        out=out,
        optimisation=optimisation,
        measure=(lambda: held_out.measure(settings.max_evaluated)) if tested else None,
    )
    scorer.eval()
    final = held_out.measure(None) if tested else {}
    _log.info("held out, all of it: %s", final)
    head = {"score.weight": scorer.head.weight, "score.bias": scorer.head.bias}
    save_adapter(out, body, head, torch.bfloat16)
    save_base(out, settings.base)
    record = {
        "kind": kind,
        "settings": asdict(settings),
        "examples": len(examples),
        "left_out": dict(left_out),
        "class_weights": weights,
        "questions": len({s.id for s in taught}),
        "seconds": round(time.perf_counter() - started),
        "device": str(scorer.head.weight.device),
        "held_out": final,
        "history": history,
    }
    save_record(out, record | settings_of(form))
    write_spec(out, kind=kind, base=settings.base, format=form)
    return out


def _scorer(body: PeftModel) -> Scorer:
    model: Any = body.get_base_model()
    head = nn.Linear(model.config.hidden_size, 1, device=model.device)
    nn.init.normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return Scorer(body, head)


def _class_weights(examples: Sequence[Encoded]) -> tuple[float, float]:
    """Weights of wrong and right labels under which both classes weigh the same in all."""
    labels = [label for example in examples for label in example.labels if label is not None]
    right = sum(labels)
    wrong = len(labels) - right
    if not right or not wrong:
        raise ConfigurationError("all labels are the same; there is nothing to tell apart")
    return len(labels) / (2 * wrong), len(labels) / (2 * right)


def _row(example: Encoded, weights: tuple[float, float]) -> dict[str, Any]:
    marks = [
        (at, label, (1 - label) * weights[0] + label * weights[1])
        for at, label in zip(example.positions, example.labels, strict=True)
        if label is not None
    ]
    return {"input_ids": example.ids, "marks": marks, "length": len(example.ids)}


def _collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad on the right, where causal attention never looks."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    labels, weights = torch.zeros(len(rows), longest), torch.zeros(len(rows), longest)
    for i, row in enumerate(rows):
        length = len(row["input_ids"])
        ids[i, :length] = torch.tensor(row["input_ids"])
        mask[i, :length] = 1
        for at, label, weight in row.get("marks", ()):
            labels[i, at], weights[i, at] = label, weight
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "weights": weights}


class _HeldOut:
    """Scores held-out solutions and says how well that tells right from wrong."""

    def __init__(
        self,
        scorer: Scorer,
        form: StepFormat | OutcomeFormat,
        solutions: Sequence[Labelled],
        encoded: Sequence[Encoded],
    ) -> None:
        self._scorer, self._form = scorer, form
        self._solutions, self._encoded = solutions, encoded

    def measure(self, max_questions: int | None) -> dict[str, Any]:
        """Figures over the first questions, or all."""
        names = list(dict.fromkeys(self._solutions[e.source].id for e in self._encoded))
        chosen = set(names[:max_questions])
        encoded = [e for e in self._encoded if self._solutions[e.source].id in chosen]
        scores = score_all(self._scorer, encoded)
        solutions = [self._solutions[e.source] for e in encoded]
        found = step_measures(scores, [e.labels for e in encoded])
        aggregation = "last" if isinstance(self._form, OutcomeFormat) else self._form.aggregation
        values = [aggregate(aggregation, tuple(s)) or 0.0 for s in scores]
        return found | choice_measures(solutions, values)


@torch.no_grad()
def score_all(scorer: Scorer, encoded: Sequence[Encoded]) -> list[list[float]]:
    """Scores at the positions of every input, batches of about equal size in tokens."""
    device = scorer.head.weight.device
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i].ids))
    found: list[list[float]] = [[] for _ in encoded]
    batch: list[int] = []
    for place, index in enumerate(order):
        batch.append(index)
        nxt = len(encoded[order[place + 1]].ids) if place + 1 < len(order) else 0
        if nxt and (len(batch) + 1) * nxt <= _EVAL_TOKENS:
            continue
        rows = _collate([{"input_ids": encoded[i].ids} for i in batch])
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = scorer.logits(rows["input_ids"].to(device), rows["attention_mask"].to(device))
        values = logits.sigmoid().cpu()
        for i, row in zip(batch, values, strict=True):
            found[i] = [float(row[at]) for at in encoded[i].positions]
        batch = []
    return found


def load_scorer(folder: str | Path, device: str = "auto") -> Scorer:
    """A trained scorer, to score many solutions at once; searches use `TrainedVerifier`.

    Raises:
        ModelNotFoundError: the folder holds no trained verifier.
    """
    path = find_adapter(folder)
    base = load_base(read_spec(path)["base"], device)
    scorer = _scorer(with_lora(base, Lora(start=str(path))))
    tensors = load_file(path / WEIGHTS)
    scorer.head.weight.data.copy_(tensors["score.weight"])
    scorer.head.bias.data.copy_(tensors["score.bias"])
    return scorer.eval()


def score_rows(folder: str | Path, rows: Sequence[dict[str, Any]], device: str = "auto") -> None:
    """Enter a trained verifier's scores into rows of labelled solutions, as `scores` by name."""
    spec = read_spec(folder)
    scorer = load_scorer(folder, device)
    tokenizer = load_tokenizer(spec["base"])
    if spec["kind"] == "step":
        name, encoder = "prm", step_encoder(StepFormat.from_mapping(spec["format"]), tokenizer)
    else:
        form = OutcomeFormat.from_mapping(spec["format"])
        name, encoder = "orm", outcome_encoder(form, tokenizer)
    told = [s for row in rows for s in row["solutions"]]
    solutions = list(labelled_of(rows))
    encoded = []
    for index, solution in enumerate(solutions):
        found = encoder(solution)
        if not isinstance(found, ScoreFailure):
            encoded.append(Encoded(*found, index))
    for example, scores in zip(encoded, score_all(scorer, encoded), strict=True):
        value = scores if name == "prm" else scores[0]
        told[example.source].setdefault("scores", {})[name] = value
