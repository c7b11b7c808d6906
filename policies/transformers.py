"""A policy that runs in this process, on transformers models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stepsearch.policies.causal import DEFAULT_CACHE_BYTES, DEFAULT_MAX_ROWS, CausalRunner
from stepsearch.policies.loading import load_tokenizer, model_hash, shared_runner
from stepsearch.policies.prompt import PromptFormat
from stepsearch.policies.sampling import Draw
from stepsearch.policies.shipped import find_adapter
from stepsearch.policies.starts import Start, Starts, choose_format
from stepsearch.policies.text import StepCutter, StepRules
from stepsearch.search.batching import cancel_all, together
from stepsearch.search.contracts import PolicySpec, Sample, SamplingParams, TextLogprobs
from stepsearch.search.tree import Chain
from stepsearch.search.types import Step


class TransformersPolicy:
    """Samples steps with a model of transformers, token-exact and with prefixes reused.

    Equal seed, chain and parameters give equal steps whatever else is in flight: two runs can only
    begin to differ at a token whose two best noisy logits lie closer than the numerics of the
    device (1e-3 in float32), or nowhere with `fixed_shapes`.

    Args:
        model: "embedded", a folder or a hub name.
        adapter: a LoRA adapter on that model, as of `find_adapter`.
        prompt_format: None for the adapter's own, or else for the template's defaults.
        device: "auto", "cpu", "cuda:0" and so on.
        dtype: "auto" (float32 on a CPU, else bfloat16), "float32", "bfloat16", "float16".
        cache_bytes: limit of the prefix cache, shared by all who use the model.
        max_rows: most continuations in one forward pass.
        fixed_shapes: the same bits whatever else is in flight; much slower.
        revision: of a hub model.

    Attributes:
        spec: name, size and provenance.
        runner: what runs the model.

    Raises:
        ModelNotFoundError: the model, tokenizer or adapter could not be loaded.
        ConfigurationError: they do not fit, or a setting is out of range.
    """

    spec: PolicySpec

    def __init__(
        self,
        *,
        model: str | Path = "embedded",
        adapter: str | Path | None = None,
        prompt_format: PromptFormat | Mapping[str, Any] | None = None,
        device: str = "auto",
        dtype: str = "auto",
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        max_rows: int = DEFAULT_MAX_ROWS,
        fixed_shapes: bool = False,
        revision: str | None = None,
    ) -> None:
        folder = None if adapter is None else find_adapter(adapter)
        self._starts = Starts(load_tokenizer(model, revision), choose_format(prompt_format, folder))
        self.runner: CausalRunner = shared_runner(
            model,
            revision=revision,
            device=device,
            dtype=dtype,
            cache_bytes=cache_bytes,
            max_rows=max_rows,
            fixed_shapes=fixed_shapes,
        )
        self.runner.model.require_head()
        self._adapter = None if folder is None else self.runner.load_adapter(folder)
        self._rules = StepRules(
            separator=self._starts.format.separator,
            final_prefix=self._starts.format.final_prefix,
            eos_ids=self._starts.end_ids(self.runner.model.eos_ids),
        )
        self.spec = PolicySpec(
            name=str(model) if folder is None else f"{model}+{folder.name}",
            num_parameters=self.runner.model.num_parameters,
            provenance=self._provenance(model, revision, adapter),
        )

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[Sample, None]:
        """Continue `chains[i]` with `seeds[i]`; see `Policy.sample`.

        Rows that nobody waits for any more stop at their next token.

        Raises:
            PolicyError: the model failed, or the chain's ids are unknown or cannot be continued.
        """
        starts: dict[int, Start] = {}
        for chain in chains:
            if id(chain) not in starts:
                starts[id(chain)] = self._starts.start(chain, params)
        tasks = [
            asyncio.create_task(self._continue(i, seed, starts[id(chain)], params))
            for i, (chain, seed) in enumerate(zip(chains, seeds, strict=True))
        ]
        try:
            for task in asyncio.as_completed(tasks):
                yield await task
        finally:
            await cancel_all(tasks)

    async def _continue(
        self, request: int, seed: int, start: Start, params: SamplingParams
    ) -> Sample:
        room = self.runner.model.max_positions - len(start.ids)
        if room < 1:
            return Sample(request, (Step(text="", stop="context", logprob=0.0),), 0, 0)
        cutter = StepCutter(start.reader.copy(), self._rules, params, room)
        draw = Draw(
            seed=seed,
            start=start.num_sampled,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
        )
        generated = await self.runner.generate(start.ids, draw, cutter.push, self._adapter)
        return Sample(request, tuple(cutter.steps), generated.computed, generated.reused)

    async def text_logprobs(self, chain: Chain, texts: Sequence[str]) -> TextLogprobs:
        """How likely each text is behind the chain; see `WeighsTexts.text_logprobs`.

        Raises:
            PolicyError: the model failed, or the chain's ids are unknown.
        """
        start = self._starts.prompt(chain.prompt) + self._starts.history(chain)
        encoded = [self._starts.encode(text) for text in texts]
        if len(start) + max(map(len, encoded)) > self.runner.model.max_positions:
            return TextLogprobs((), 0, 0)
        found = await together(self._weigh(start, ids) for ids in encoded)
        values, computed, reused = zip(*found, strict=True)
        return TextLogprobs(values, sum(computed), sum(reused))

    async def _weigh(self, start: tuple[int, ...], ids: list[int]) -> tuple[float, int, int]:
        first = len(start) - 1
        positions = range(first, first + len(ids))
        encoded = await self.runner.encode((*start, *ids[:-1]), positions, self._adapter)
        logprob = self.runner.model.logprob
        value = await asyncio.to_thread(logprob, encoded.hidden, ids, self._adapter)
        return value, encoded.computed, encoded.reused

    def count_prompt_tokens(self, prompt: str) -> int:
        """Tokens of the rendered prompt."""
        return len(self._starts.prompt(prompt))

    def _provenance(
        self, model: str | Path, revision: str | None, adapter: str | Path | None
    ) -> dict[str, Any]:
        base = self.runner.model
        return {
            "backend": "transformers",
            "model": str(model),
            "revision": base.revision or revision,
            "model_hash": model_hash(model, revision),
            "adapter": None if adapter is None else str(adapter),
            "adapter_hash": self._adapter,
            "prompt_format": self._starts.format.to_mapping(),
            "template_hash": self._starts.template_hash,
            "device": str(base.device),
            "dtype": str(base.dtype).removeprefix("torch."),
            "fixed_shapes": self.runner.fixed_shapes,
            "versions": {name: version(name) for name in ("torch", "transformers", "peft")},
        }
