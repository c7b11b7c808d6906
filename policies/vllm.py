"""A policy that runs vLLM in this process: ids in, ids out, one request per continuation."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepsearch.policies.adapters import check_base
from stepsearch.policies.bridge import ask_all
from stepsearch.policies.chunks import ChunkCutter, find_endings
from stepsearch.policies.description import describe
from stepsearch.policies.loading import load_tokenizer
from stepsearch.policies.parts import later_seed
from stepsearch.policies.prompt import PromptFormat
from stepsearch.policies.shipped import find_adapter
from stepsearch.policies.starts import Start, Starts, choose_format
from stepsearch.policies.text import StepRules
from stepsearch.policies.vllm_engine import (
    Ask,
    EngineSettings,
    Piece,
    VllmEngine,
    known_settings,
    require_installed,
    vllm_version,
)
from stepsearch.search.arrivals import plus
from stepsearch.search.batching import together
from stepsearch.search.contracts import PolicySpec, Sample, SamplingParams, TextLogprobs
from stepsearch.search.errors import ConfigurationError, PolicyError
from stepsearch.search.tree import Chain
from stepsearch.search.types import Step

_GREEDY = 1e-5
"""vLLM takes a temperature below it for greedy, and divides by none that is smaller."""


class VllmPolicy:
    """Samples steps with a vLLM engine of its own, token-exact and with prefixes reused.

    A step is one request that stops behind the token that completes the separator: by the ids of
    such tokens where a separator always lies in one token, as a line end does, else also by text. A
    chain to its end is one request whose tokens are looked at `stream_interval` at a time. What is
    an end is decided by the same code as for the other policies; tokens that vLLM wrote behind it
    are left out and counted in `num_surplus`.

    Equal seed, chain and parameters give equal steps up to the numerics of the device: vLLM's
    results depend on what else is in the batch in the last bits, unless `batch_invariant` is set.

    Args:
        model: "embedded", a folder or a hub name.
        adapter: a LoRA adapter on that model, as of `find_adapter`.
        prompt_format: None for the adapter's own, or else for the template's defaults.
        revision: of a hub model.
        seeded: every request draws from a generator of its own. Without, samples are drawn from
            the engine's generator, which may be faster, and no run is like another.
        logprobs: steps carry their log-probability, which `search.prior=policy` needs; costs time.
        engine: how the engine is started, by the names of `EngineSettings`.

    Attributes:
        spec: name, size and provenance.
        engine: the running engine.
        num_surplus: tokens that were generated behind the end of a chain and left out.

    Raises:
        ModelNotFoundError: tokenizer or configuration could not be loaded.
        ConfigurationError: vLLM could not start, the adapter belongs to another base, or a setting
            does not fit.
    """

    spec: PolicySpec

    def __init__(
        self,
        *,
        model: str | Path = "embedded",
        adapter: str | Path | None = None,
        prompt_format: PromptFormat | Mapping[str, Any] | None = None,
        revision: str | None = None,
        seeded: bool = True,
        logprobs: bool = False,
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        given = known_settings(engine)
        require_installed()
        folder = None if adapter is None else find_adapter(adapter)
        about = describe(model, revision)
        if folder is not None:
            check_base(folder, lambda: about.model_hash)
        self._starts = Starts(load_tokenizer(model, revision), choose_format(prompt_format, folder))
        form = self._starts.format
        self._rules = StepRules(
            separator=form.separator,
            final_prefix=form.final_prefix,
            eos_ids=self._starts.end_ids(about.eos_ids),
        )
        self._endings = find_endings(self._starts.tokenizer, self._rules)
        self._seeded = seeded
        self._logprobs = logprobs
        self.num_surplus = 0
        settings = EngineSettings(
            model=about.location,
            revision=about.revision,
            lora_rank=None if folder is None else _rank(folder),
            **given,
        )
        self.engine = VllmEngine(settings, None if folder is None else str(folder))
        self.spec = PolicySpec(
            name=str(model) if folder is None else f"{model}+{folder.name}",
            num_parameters=about.num_parameters,
            provenance={
                "backend": "vllm",
                "model": str(model),
                "revision": about.revision,
                "model_hash": about.model_hash,
                "adapter": None if adapter is None else str(adapter),
                "adapter_hash": None if folder is None else _hash(folder),
                "prompt_format": form.to_mapping(),
                "template_hash": self._starts.template_hash,
                "dtype": self.engine.dtype,
                "seeded": seeded,
                "prefix_cache": settings.prefix_cache,
                "batch_invariant": settings.batch_invariant,
                "tensor_parallel": settings.tensor_parallel,
                "versions": {"vllm": vllm_version()},
            },
        )

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[Sample, None]:
        """Continue `chains[i]` with `seeds[i]`; see `Policy.sample`.

        Requests that nobody waits for any more are aborted.

        Raises:
            PolicyError: the engine failed, or the chain's ids are unknown or cannot be continued.
        """
        starts: dict[int, Start] = {}
        works: list[Callable[[], Coroutine[Any, Any, Sample]]] = []
        for i, (chain, seed) in enumerate(zip(chains, seeds, strict=True)):
            if id(chain) not in starts:
                starts[id(chain)] = self._starts.start(chain, params)
            start = starts[id(chain)]
            works.append(functools.partial(self._continue, i, seed, start, params))
        async with contextlib.aclosing(ask_all(self.engine.loop, works)) as samples:
            async for sample in samples:
                yield sample

    async def _continue(
        self, request: int, seed: int, start: Start, params: SamplingParams
    ) -> Sample:
        """One continuation: one request, or more where one stopped at what ends no step."""
        room = self.engine.max_length - len(start.ids)
        if room < 1:
            return Sample(request, (Step(text="", stop="context", logprob=0.0),), 0, 0)
        cutter = ChunkCutter(start.reader.copy(), self._rules, params, room, self._endings)
        written: list[int] = []
        computed: int | None = 0
        reused: int | None = 0
        while cutter.goes_on:
            ids = [*start.ids, *written]
            ask = self._ask(ids, later_seed(seed, len(written)), params, cutter.allowance)
            before, cached = len(written), None
            async with contextlib.aclosing(self._generate(ask)) as pieces:
                async for piece in pieces:
                    written += piece.ids
                    cached = piece.cached
                    if not cutter.take(piece.ids, piece.logprobs):
                        break
            if len(written) == before:
                raise PolicyError("vLLM ended a request without a token")
            computed = plus(computed, None if cached is None else len(ids) - cached)
            reused = plus(reused, cached)
        self.num_surplus += cutter.num_surplus
        return Sample(request, tuple(cutter.steps), computed, reused)

    def _ask(self, ids: Sequence[int], seed: int, params: SamplingParams, max_tokens: int) -> Ask:
        is_step = params.until == "step"
        stops = (*self._endings.closing, *self._rules.eos_ids) if is_step else self._rules.eos_ids
        by_text = is_step and not self._endings.always
        return Ask(
            ids=ids,
            max_tokens=max_tokens,
            seed=seed if self._seeded else None,
            temperature=params.temperature if params.temperature >= _GREEDY else 0.0,
            top_p=params.top_p,
            top_k=params.top_k,
            stop_ids=tuple(stops),
            stop_texts=(self._rules.separator,) if by_text else (),
            logprobs=self._logprobs,
            watched=not is_step,
        )

    async def _generate(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        try:
            async with contextlib.aclosing(self.engine.generate(ask)) as pieces:
                async for piece in pieces:
                    yield piece
        except Exception as error:
            raise PolicyError(f"vLLM failed: {type(error).__name__}: {error}") from error

    async def text_logprobs(self, chain: Chain, texts: Sequence[str]) -> TextLogprobs:
        """How likely each text is behind the chain; see `WeighsTexts.text_logprobs`.

        Raises:
            PolicyError: the engine failed, or the chain's ids are unknown.
        """
        start = self._starts.prompt(chain.prompt) + self._starts.history(chain)
        encoded = [tuple(self._starts.encode(text)) for text in texts]
        if len(start) + max(map(len, encoded)) > self.engine.max_length:
            return TextLogprobs((), 0, 0)
        return await asyncio.wrap_future(self.engine.loop.submit(self._weigh(start, encoded)))

    async def _weigh(self, start: Sequence[int], texts: Sequence[tuple[int, ...]]) -> TextLogprobs:
        """One request for each place where a text goes on; what texts share is asked once."""
        wanted: dict[tuple[int, ...], dict[int, None]] = {}
        for ids in texts:
            for place, token in enumerate(ids):
                wanted.setdefault(ids[:place], {})[token] = None
        asks = {
            before: Ask(ids=[*start, *before], max_tokens=1, of_tokens=tuple(tokens))
            for before, tokens in wanted.items()
        }
        # The first leaves its prefix in the cache for the others.
        pieces: dict[tuple[int, ...], Piece] = {(): await self._answer(asks.pop(()))}
        others = await together(map(self._answer, asks.values()))
        pieces.update(zip(asks, others, strict=True))
        told = {
            (before, token): logprob
            for before, tokens in wanted.items()
            for token, logprob in zip(tokens, pieces[before].of_tokens or (), strict=True)
        }
        values = (math.fsum(told[ids[:k], i] for k, i in enumerate(ids)) for ids in texts)
        cached: int | None = 0
        for piece in pieces.values():
            cached = plus(cached, piece.cached)
        length = sum(len(start) + len(before) for before in pieces)
        return TextLogprobs(tuple(values), None if cached is None else length - cached, cached)

    async def _answer(self, ask: Ask) -> Piece:
        """The answer to a request that is not watched."""
        async with contextlib.aclosing(self._generate(ask)) as pieces:
            async for piece in pieces:
                return piece
        raise PolicyError("vLLM ended a request without a token")

    def prompt_ids(self, prompt: str) -> tuple[int, ...]:
        """The ids that a prompt is rendered to, before anything is sampled."""
        return self._starts.prompt(prompt)

    def count_prompt_tokens(self, prompt: str) -> int:
        """Tokens of the rendered prompt."""
        return len(self._starts.prompt(prompt))

    def close(self) -> None:
        """Stop the engine and give its memory back. Closing twice does nothing."""
        self.engine.close()


def _rank(adapter: Path) -> int:
    try:
        return int(json.loads((adapter / "adapter_config.json").read_text("utf-8"))["r"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"adapter={adapter}: there is no LoRA adapter of peft ({error})"
        ) from error


def _hash(adapter: Path) -> str:
    return hashlib.sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest()
