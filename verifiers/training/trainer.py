"""What the trainings share: LoRA on a base, transformers' Trainer, checkpoints, progress."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from stepsearch.policies.adapters import WEIGHTS, check_base
from stepsearch.policies.loading import find_model, model_hash, pick_device
from stepsearch.policies.shipped import find_adapter
from stepsearch.search.errors import ConfigurationError, ModelNotFoundError
from stepsearch.search.parameters import whole
from stepsearch.verifiers.training.folder import save_adapter

_log = logging.getLogger(__name__)
_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CHECKPOINTS = "checkpoints"
TRAINER_STATE_NAME = "trainer_state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Shape of the adapter (Hu et al. 2021).

    Attributes:
        rank: of the update; 0 trains all weights instead, which only policies can.
        alpha: the update is scaled by alpha / rank.
        dropout: of the update's input.
        targets: names of the layers that are adapted.
        start: an adapter to go on from, as of `find_adapter`, which then says rank and targets.
    """

    rank: int = 16
    alpha: float = 32
    dropout: float = 0.0
    targets: Sequence[str] = _TARGETS
    start: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimisation:
    """How the weights are found.

    Attributes:
        epochs: passes over the examples.
        batch_size: examples a step.
        micro_batch: the most examples that are in memory at once; None takes the whole batch. A
            step then has several passes: a policy's gradient is the same, a verifier's weighs the
            passes alike.
        learning_rate: at its highest; it rises over the first steps and falls to 0 linearly.
        warmup: share of the steps in which it rises.
        weight_decay: of AdamW.
        evaluations: how often the held-out part is looked at; the last time is at the end.
        checkpoints: how often all that is needed to go on is saved.
        dtype: `bfloat16` computes in it where the device can and keeps weights in float32.
        seed: of order, dropout and new weights.
        device: `auto`, `cpu`, `cuda:0`.
    """

    epochs: float = 2
    batch_size: int = 32
    micro_batch: int | None = None
    learning_rate: float = 5e-4
    warmup: float = 0.05
    weight_decay: float = 0.0
    evaluations: int = 3
    checkpoints: int = 4
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"optimisation.{name}={getattr(self, name)} must be > 0")
        whole("optimisation.batch_size", self.batch_size, least=1)
        if self.micro_batch is not None:
            whole("optimisation.micro_batch", self.micro_batch, least=1, hint="null for all")

    @property
    def num_passes(self) -> int:
        """Passes of a step, all of them over as many examples."""
        least = -(-self.batch_size // (self.micro_batch or self.batch_size))
        return next(n for n in range(least, self.batch_size + 1) if self.batch_size % n == 0)


class Examples(Dataset[dict[str, Any]]):
    """Rows in memory, with their lengths so that a batch holds alike ones."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]


def load_base(base: str, device: str) -> PreTrainedModel:
    """A base with its language-model head, in float32.

    Raises:
        ModelNotFoundError: it could not be loaded.
    """
    source = find_model(base)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source.location, dtype=torch.float32, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelNotFoundError(f"base={base}: {error}") from error
    model.config.use_cache = False
    assert isinstance(model, PreTrainedModel)
    nn.Module.to(model, pick_device(device))
    return model


def with_lora(model: PreTrainedModel, lora: Lora) -> PeftModel:
    """The model with an adapter that can be trained, new or to be gone on with.

    Raises:
        ConfigurationError: the rank is below 1, or the adapter to go on from is not there, does not
            fit or belongs to another base.
    """
    if lora.start is not None:
        folder = find_adapter(lora.start)
        if not (folder / WEIGHTS).is_file():
            raise ConfigurationError(f"lora.start={lora.start} holds no {WEIGHTS}")
        check_base(folder, lambda: model_hash(str(model.name_or_path)))
        begun = LoraConfig.from_pretrained(str(folder))
        begun.inference_mode, begun.modules_to_save = False, None
        peft = _adapted(model, begun)
        _load(peft, load_file(folder / WEIGHTS))
        return peft
    if lora.rank < 1:
        raise ConfigurationError(f"lora.rank={lora.rank} must be at least 1 here")
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        task_type="CAUSAL_LM",
    )
    return _adapted(model, config)


def _adapted(model: PreTrainedModel, config: LoraConfig) -> PeftModel:
    adapted = get_peft_model(model, config)
    assert isinstance(adapted, PeftModel)
    return adapted


def _load(peft: Any, tensors: Mapping[str, Tensor]) -> None:
    own = {name: t for name, t in tensors.items() if ".lora_" in name}
    result: Any = set_peft_model_state_dict(peft, own)
    missing = [name for name in result.missing_keys if ".lora_" in name]
    if missing or result.unexpected_keys:
        raise ConfigurationError(
            f"the adapter does not fit its base: missing {missing[:2]}, unknown "
            f"{result.unexpected_keys[:2]}"
        )


class StageTrainer(Trainer):
    """Transformers' Trainer, with checkpoints of an adapter's size and our own evaluation.

    Args:
        model: what is trained: a causal model, one with an adapter, or a scorer around one.
        measure: gives the figures of an evaluation; None evaluates nothing.
        options: as of `Trainer`.
    """

    def __init__(
        self, model: nn.Module, measure: Callable[[], dict[str, Any]] | None, **options: Any
    ) -> None:
        self._measure = measure
        self._measured = -1
        super().__init__(model=model, **options)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        peft, head = parts_of(self.model)
        if peft is None:
            super()._save(output_dir, state_dict)
        else:
            save_adapter(Path(output_dir or str(self.args.output_dir)), peft, head)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        peft, head = parts_of(self.model)
        if peft is None:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        tensors = load_file(Path(resume_from_checkpoint) / WEIGHTS)
        _load(peft, tensors)
        for name, tensor in head.items():
            tensor.data.copy_(tensors[name])

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Look at the held-out part; once a step, though an epoch's end asks again."""
        if self._measure is None or self._measured == self.state.global_step:
            return {}
        self._measured = self.state.global_step
        model = self.model
        assert isinstance(model, nn.Module)
        was_training = model.training
        model.eval()
        started = time.perf_counter()
        found = self._measure()
        model.train(was_training)
        _log.info("step %d, held out: %s", self.state.global_step, _short(found))
        took = round(time.perf_counter() - started, 1)
        self.state.log_history.append({"step": self.state.global_step, "took": took, **found})
        return found


def parts_of(model: Any) -> tuple[PeftModel | None, dict[str, Tensor]]:
    """The adapted model within what is trained, None without one, and the tensors of its head."""
    if isinstance(model, PeftModel):
        return model, {}
    inner = getattr(model, "body", None)
    if isinstance(inner, PeftModel):
        head: nn.Linear = model.head
        return inner, {"score.weight": head.weight, "score.bias": head.bias}
    return None, {}


def _short(found: Mapping[str, Any]) -> str:
    def text(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name} {text(value)}" for name, value in found.items())


class _Progress(TrainerCallback):
    """A line on the log every few per cent: step, loss, speed, time left."""

    def __init__(self) -> None:
        self._began: tuple[float, int] | None = None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not logs or "loss" not in logs:
            return
        pace = ""
        if self._began is None:
            self._began = (time.perf_counter(), state.global_step)
        else:
            begun, first = self._began
            rate = (state.global_step - first) / max(time.perf_counter() - begun, 1e-9)
            left = (state.max_steps - state.global_step) / rate if rate else math.inf
            pace = f", {rate:.1f} steps/s, {left:.0f} s left"
        _log.info(
            "step %d of %d, loss %.4f, learning rate %.2g%s",
            *(state.global_step, state.max_steps, logs["loss"], logs["learning_rate"], pace),
        )


def train(
    model: nn.Module,
    rows: Sequence[dict[str, Any]],
    collate: Callable[[list[dict[str, Any]]], dict[str, Tensor]],
    *,
    out: Path,
    optimisation: Optimisation,
    measure: Callable[[], dict[str, Any]] | None,
) -> list[dict[str, Any]]:
    """Train in place, going on from the last checkpoint below `out`; returns the log.

    Raises:
        ConfigurationError: there is nothing to train on.
    """
    if not rows:
        raise ConfigurationError("there are no examples to train on")
    set_seed(optimisation.seed)
    folder = out / CHECKPOINTS
    arguments = _arguments(folder, len(rows), optimisation, measures=measure is not None)
    trainer = StageTrainer(
        model,
        measure,
        args=arguments,
        train_dataset=Examples(rows),
        eval_dataset=Examples([]),
        data_collator=collate,
        callbacks=[_Progress()],
    )
    trainer.remove_callback(PrinterCallback)
    last = _last_complete(folder)
    if last is not None:
        _log.info("going on from %s", last)
    trainer.train(resume_from_checkpoint=last)
    return list(trainer.state.log_history)


def _last_complete(folder: Path) -> str | None:
    """The newest checkpoint that was written to its end; its state is what is written last."""
    states = folder.glob(f"checkpoint-*/{TRAINER_STATE_NAME}")
    done = sorted(states, key=lambda path: int(path.parent.name.rpartition("-")[2]))
    return str(done[-1].parent) if done else None


def _arguments(
    folder: Path, count: int, optimisation: Optimisation, *, measures: bool
) -> TrainingArguments:
    steps = max(1, round(count * optimisation.epochs / optimisation.batch_size))
    device = pick_device(optimisation.device)
    uses_bfloat16 = optimisation.dtype == "bfloat16" or (
        optimisation.dtype == "auto" and device.type == "cuda"
    )
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=optimisation.batch_size // optimisation.num_passes,
        gradient_accumulation_steps=optimisation.num_passes,
        learning_rate=optimisation.learning_rate,
        lr_scheduler_type="linear",
        # The rate of a step of the warm-up is below the full one, of its first step 0.
        warmup_steps=min(max(1, round(steps * optimisation.warmup)), steps - 1),
        weight_decay=optimisation.weight_decay,
        bf16=uses_bfloat16,
        use_cpu=device.type == "cpu",
        train_sampling_strategy="group_by_length",
        length_column_name="length",
        logging_steps=max(1, steps // 25),
        eval_strategy="steps" if measures else "no",
        eval_steps=max(1, -(-steps // max(1, optimisation.evaluations))),
        save_strategy="steps",
        save_steps=max(1, -(-steps // max(1, optimisation.checkpoints))),
        save_total_limit=1,
        seed=optimisation.seed,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=device.type == "cuda",
    )


def settings_of(*parts: Any) -> dict[str, Any]:
    """Dataclasses as plain data, for the record."""
    return {type(part).__name__.lower(): asdict(part) for part in parts}
