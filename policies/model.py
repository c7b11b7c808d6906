"""A decoder-only model as a function of explicit masks, positions and key/value buffers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from stepsearch.policies import attention
from stepsearch.policies.adapters import Adapters, num_parameters
from stepsearch.policies.kv_slots import Shapes, SlotBuffers, SlotCache
from stepsearch.search.errors import ConfigurationError

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}


class _Reference(NamedTuple):
    ids: Tensor
    hidden: Tensor
    logits: Tensor | None
    shapes: Shapes


class CausalModel:
    """One model in memory, with any number of LoRA adapters.

    Args:
        model: a decoder with or without its language-model head, in evaluation mode.
        name: names it in messages.
        base_hash: hash of the weights, asked for when an adapter names the base it belongs to.

    Attributes:
        shapes: sizes of what one token leaves behind.
        max_positions: longest sequence.
        dtype: of weights and activations.
        device: where it lives.
        num_parameters: of the base.
        num_embeddings: ids lie below it.
        eos_ids: tokens that the model's settings call an end.
        revision: commit of the hub that it came from, None for a folder.

    Raises:
        ConfigurationError: its layers are not plain full attention, or it does not compute what
            transformers computes when it is run with explicit masks.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        name: str,
        base_hash: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.name = name
        self.base_hash = base_hash
        self._model = cast(Any, model)
        self._model.eval().requires_grad_(False)
        self._body: Any = model.base_model
        self.config: Any = model.config.get_text_config(decoder=True)
        self.dtype = model.dtype
        self.device = model.device
        self.max_positions = int(self.config.max_position_embeddings)
        self.num_parameters = num_parameters(model)
        self.num_embeddings = int(self._model.get_input_embeddings().weight.shape[0])
        self.eos_ids = _end_ids(model)
        self.revision: str | None = getattr(model.config, "_commit_hash", None)
        self._adapters = Adapters(model, base_hash)
        self.lock = threading.Lock()
        self._refuse_other_layers()
        with torch.no_grad():
            reference = self._reference()
            self.shapes = reference.shapes
            self._groups = int(self.config.num_attention_heads) // self.shapes.num_heads
            model.set_attn_implementation(attention.NAME)
            self._check(reference)

    def _refuse_other_layers(self) -> None:
        if getattr(self.config, "is_encoder_decoder", False):
            raise ConfigurationError(f"model={self.name} is an encoder-decoder; give a decoder")
        for layer in DynamicCache(config=self.config).layers:
            window = getattr(layer, "sliding_window", None)
            if isinstance(layer, DynamicSlidingWindowLayer):
                plain = window is not None and window >= self.max_positions
            else:
                plain = type(layer) is DynamicLayer
            if not plain:
                raise ConfigurationError(
                    f"model={self.name} has layers of kind {type(layer).__name__}"
                    f" (window {window}); only plain full attention can be run on tree prefixes."
                    " Use policy=vllm for this model"
                )

    def _reference(self) -> _Reference:
        """A short sequence as transformers itself computes it."""
        ids = torch.arange(1, 6, device=self.device)[None] * 7 % self.num_embeddings
        cache = DynamicCache(config=self.config)
        mask = torch.ones_like(ids)
        hidden = self._body(
            input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True
        ).last_hidden_state
        layers: list[Any] = list(cache.layers)
        sizes = {(x.keys.shape[1], x.keys.shape[3], x.values.shape[3]) for x in layers}
        if len(sizes) != 1:
            raise ConfigurationError(f"model={self.name} has layers of several sizes: {sizes}")
        shapes = Shapes(len(layers), *sizes.pop(), hidden.shape[-1])
        head = self._model.get_output_embeddings()
        logits = (
            None
            if head is None
            else self._model(input_ids=ids, attention_mask=mask).logits[0].float()
        )
        return _Reference(ids[0], hidden[0].float(), logits, shapes)

    def _check(self, reference: _Reference) -> None:
        """Compute the same sequence in two passes and beside a sibling branch."""
        ids, device = reference.ids, self.device
        buffers = SlotBuffers(self.shapes, self.dtype, device)
        buffers.reserve(1, 8)
        first = self.forward(
            ids[None, :2],
            torch.arange(2, device=device)[None],
            torch.ones(1, 2, 2, dtype=torch.bool, device=device).tril(),
            torch.arange(2, device=device)[None],
            buffers,
            None,
        )
        depths = torch.tensor([[2, 2, 3, 3, 4]], device=device)
        tokens = torch.stack([ids[0], ids[2], ids[1], ids[3], ids[4]])[None]
        looks_at = [[0, 1, 2], [0, 1, 3], [0, 1, 2, 4], [0, 1, 3, 5], [0, 1, 3, 5, 6]]
        allowed = torch.zeros(1, 5, 7, dtype=torch.bool, device=device)
        for i, seen in enumerate(looks_at):
            allowed[0, i, seen] = True
        columns = torch.arange(2, 7, device=device)[None]
        second = self.forward(tokens, depths, allowed, columns, buffers, None)
        hidden = torch.cat([first[0], second[0, [1, 3, 4]]])
        self._compare("hidden states", hidden.float(), reference.hidden)
        if reference.logits is not None:
            self._compare("logits", self.logits(hidden), reference.logits)

    def _compare(self, what: str, ours: Tensor, theirs: Tensor) -> None:
        error = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))
        if not error <= _TOLERANCE.get(self.dtype, 5e-2):
            raise ConfigurationError(
                f"model={self.name} gives other {what} with explicit masks than without (relative"
                f" error {error:.1e}); it cannot be run on tree prefixes. Use policy=vllm for it"
            )

    def load_adapter(self, folder: Path) -> str:
        """Load a LoRA adapter; returns its name. See `Adapters.load`."""
        with self.lock:
            return self._adapters.load(folder)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        allowed: Tensor,
        columns: Tensor,
        buffers: SlotBuffers,
        adapter: str | None,
    ) -> Tensor:
        """Compute new tokens of the first rows of some buffers.

        Args:
            ids: [rows, tokens].
            positions: [rows, tokens], number of tokens before each in its own sequence.
            allowed: [rows, tokens, width] bool, the columns each token may look at, itself
                included.
            columns: [rows, tokens], where each token's keys and values are written.
            buffers: holds what the tokens look at.
            adapter: name of a loaded adapter, None for the base.

        Returns:
            [rows, tokens, hidden size], last hidden states; also written to the buffers.
        """
        cache = SlotCache(buffers, columns, allowed.shape[2])
        with self.lock:
            self._adapters.activate(adapter)
            hidden: Tensor = self._body(
                input_ids=ids,
                attention_mask=attention.additive(allowed, self._groups, self.dtype),
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
        buffers.hidden[cache.rows, columns] = hidden
        return hidden

    def require_head(self) -> None:
        """Raise `ConfigurationError` when there is no language-model head."""
        if self._model.get_output_embeddings() is None:
            raise ConfigurationError(
                f"model={self.name} has no language-model head to sample from; give a causal"
                " language model"
            )

    def logits(self, hidden: Tensor, adapter: str | None = None) -> Tensor:
        """[n, hidden size] to [n, vocabulary] in float32.

        Args:
            hidden: last hidden states.
            adapter: name of a loaded adapter, which may change the head; None for the base.

        Raises:
            ConfigurationError: the model has no language-model head.
        """
        self.require_head()
        with self.lock:
            self._adapters.activate(adapter)
            logits: Tensor = self._model.get_output_embeddings()(hidden)
        return logits.float()

    def output_rows(self, ids: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Rows of the language-model head, [n, hidden size], and their bias [n], in float32.

        Raises:
            ConfigurationError: there is no language-model head, or an adapter changes it.
        """
        self.require_head()
        head = self._model.get_output_embeddings()
        if type(head) is not torch.nn.Linear:
            raise ConfigurationError(
                f"model={self.name}: an adapter changes the language-model head, so single tokens"
                " cannot be read from it; merge that adapter into a model of its own"
            )
        rows = torch.tensor(list(ids), device=head.weight.device)
        bias = None if head.bias is None else head.bias[rows].float()
        return head.weight[rows].float(), bias

    def distance(self, other: CausalModel) -> float | None:
        """Mean over the matrices of |a - b| / |b|, b being the other's; None if shapes differ.

        About 1.4 for models that have nothing to do with each other, 0 for the same one.
        """
        mine, theirs = (
            {n: p for n, p in m._model.named_parameters() if p.dim() > 1 and ".lora_" not in n}
            for m in (self, other)
        )
        if {n: p.shape for n, p in mine.items()} != {n: p.shape for n, p in theirs.items()}:
            return None
        found = []
        for name, matrix in theirs.items():
            b = matrix.float().to(self.device)
            found.append(float((mine[name].float() - b).norm() / b.norm()))
        return sum(found) / len(found)

    @torch.no_grad()
    def logprob(self, hidden: Tensor, ids: Sequence[int], adapter: str | None = None) -> float:
        """Sum of log p(ids[k] | hidden[k]) over [n, hidden size] states and n ids, in nats."""
        scores = self.logits(hidden.to(self.dtype), adapter).log_softmax(dim=-1)
        index = torch.tensor(ids, device=scores.device)[:, None]
        return float(scores.gather(1, index).sum())


def _end_ids(model: Any) -> frozenset[int]:
    found: set[int] = set()
    for settings in (getattr(model, "generation_config", None), model.config):
        ids = getattr(settings, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or [])
    return frozenset(found)
