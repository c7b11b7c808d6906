"""Outcome reward models on transformers: one score for a whole solution (Cobbe et al. 2021)."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepsearch.policies.causal import DEFAULT_CACHE_BYTES, Encoded
from stepsearch.search.contracts import ScoreFailure, StepScores, VerifierSpec
from stepsearch.search.tree import Chain
from stepsearch.verifiers.body import Body, check_on_too_long, raise_too_long, scored, too_long
from stepsearch.verifiers.encoders import checked_template, prompt_encoder
from stepsearch.verifiers.formats.encoding import check_text
from stepsearch.verifiers.formats.outcome import OutcomeFormat
from stepsearch.verifiers.selfcheck import require

if TYPE_CHECKING:
    from stepsearch.verifiers.vllm_body import VllmBody

_MAX_CHAINS = 4096


class OutcomeVerifier:
    """Scores the whole of a chain at the last token of its rendering.

    One number a chain, entered at its newest step. Every chain is tokenised and read as a whole; of
    keys and values only those of a shared prefix are reused.

    Args:
        model: `embedded`, a folder, or a hub name.
        format: how the model is fed and read; a mapping is turned into an `OutcomeFormat`.
        name: the name of the score column.
        adapter: folder of a LoRA adapter, which then also holds the head; None reads the head from
            the model's own files.
        revision: of a hub model.
        device: `auto`, `cpu`, `cuda:N`.
        dtype: of the model, `auto` being float32 on a CPU and bfloat16 elsewhere; the head is
            always computed in float32.
        on_too_long: `drop` gives a chain above the length limit a typed failure, `fail` ends the
            search. Nothing is ever cut: the end is what is judged.
        cache_bytes: memory for keys and values of prefixes, shared with whoever shares the base.
        selfcheck: score a few probes now and refuse to load when they come out wrong.

    Raises:
        ModelNotFoundError: model, adapter or weights are not where they were looked for.
        ConfigurationError: a setting does not fit.
        VerifierError: head, tokenizer or template are not what the format says, or the self-check
            failed.
    """

    def __init__(
        self,
        *,
        model: str | Path,
        format: OutcomeFormat | Mapping[str, Any],
        name: str = "orm",
        adapter: str | Path | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        on_too_long: Literal["drop", "fail"] = "drop",
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        selfcheck: bool = True,
    ) -> None:
        check_on_too_long(on_too_long)
        form = format if isinstance(format, OutcomeFormat) else OutcomeFormat.from_mapping(format)
        self.format = form
        self._fails_when_too_long = on_too_long == "fail"
        self._set_up(
            Body(
                model,
                adapter=adapter,
                revision=revision,
                device=device,
                dtype=dtype,
                cache_bytes=cache_bytes,
            ),
            name,
        )
        if selfcheck:
            require(self)

    def _set_up(self, body: Body | VllmBody, name: str) -> None:
        form, self._body = self.format, body
        self._prompt = prompt_encoder(self._body.tokenizer, form.system, form.template)
        template = checked_template(self._prompt, form.template_hash)
        # A fast tokenizer holds state that a call may change, so calls must not overlap.
        self._lock = threading.Lock()
        self._ids = lru_cache(_MAX_CHAINS)(self._encode_text)
        self._head = self._body.head(form.head)
        self._max_length = self._body.max_length(form.max_length)
        self.spec = VerifierSpec(
            name=name,
            kind="outcome",
            range=form.head.range,
            aggregation="last",
            threshold=form.threshold,
            max_length=self._max_length,
            num_parameters=body.num_parameters,
            provenance={
                **self._body.provenance,
                "template_hash": template.hash,
                "template_date": template.date,
                "format": asdict(form),
            },
        )

    @classmethod
    def declare(
        cls, *, format: OutcomeFormat | Mapping[str, Any], name: str = "orm", **_: Any
    ) -> VerifierSpec:
        """What the scores mean, told by the format alone; the other settings do not matter."""
        if not isinstance(format, OutcomeFormat):
            format = OutcomeFormat.from_mapping(format)
        return VerifierSpec(
            name=name, kind="outcome", range=format.head.range, threshold=format.threshold
        )

    def count_tokens(self, chain: Chain) -> int:
        """Tokens of the whole input: a prefix of the chain has another input."""
        ids = self.encode(chain)
        return 0 if isinstance(ids, ScoreFailure) else len(ids)

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        """Score every chain as a whole.

        Raises:
            VerifierError: the model cannot be run any more, or a chain is too long and
                `on_too_long` is `fail`.
        """
        encoded = [self.encode(chain) for chain in chains]
        if self._fails_when_too_long:
            raise_too_long(self.spec.name, encoded)
        pairs = zip(chains, encoded, strict=True)
        return await asyncio.gather(*(self._score_one(c, e) for c, e in pairs))

    async def _score_one(self, chain: Chain, ids: list[int] | ScoreFailure) -> StepScores:
        if isinstance(ids, ScoreFailure):
            return StepScores(failure=ids)
        if not chain.num_new:
            return StepScores()
        states = await self._body.hidden(self.spec.name, ids, [len(ids) - 1])
        if not isinstance(states, Encoded):
            return states
        return scored(self._head.scores(states.hidden), states.computed, states.reused)

    def encode(self, chain: Chain) -> list[int] | ScoreFailure:
        """What the model reads for a chain."""
        ids = self._ids(chain.question, "".join(chain.texts).rstrip())
        if isinstance(ids, list) and len(ids) > self._max_length:
            return too_long(len(ids), self._max_length)
        return ids

    def _encode_text(self, question: str, solution: str) -> list[int] | ScoreFailure:
        failure = check_text(question, ()) or check_text(solution, ())
        if failure:
            return failure
        with self._lock:
            if self.format.ask == "judge":
                return self._prompt.encode(self.format.request(question, solution))
            return self._prompt.encode_answered(question, solution)

    @contextmanager
    def uncached(self) -> Iterator[OutcomeVerifier]:
        """The same model without its cache: what is scored neither uses nor fills it."""
        probe = copy.copy(self)
        probe._body = self._body.uncached()
        probe._fails_when_too_long = False
        try:
            yield probe
        finally:
            probe._body.close()
