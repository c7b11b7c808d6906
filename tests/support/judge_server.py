"""The faulty server as one that reads sequences: its numbers depend on their ids alone."""

from __future__ import annotations

import math
import random
from typing import Any

from support.faulty import FaultyServer


def outputs(ids: list[int], width: int) -> list[float]:
    """Numbers of a head, or logits of the two tokens, for the last of some ids."""
    draw = random.Random(str(ids))
    return [draw.gauss(0, 2) for _ in range(width)]


class JudgeServer(FaultyServer):
    """Answers /completions with log-probabilities, /pooling and /classify.

    Args:
        tokenizer: what turns ids into text.
        width: outputs of the head.

    Attributes:
        tokens: the good and the bad token, whose log-probabilities are told.
        form: how they are told: `asked` (vLLM), `top` by text (SGLang), `content` (llama.cpp), or
            `others`, where neither is among the most likely.
        rows: for which tokens /pooling gives rows: `all`, `marks`, or one too few (`short`).
        mark: the step mark.
        obeys: whether `use_activation` changes anything.
        cached: tokens that it says it took from a cache; None says nothing.
        misread: tokens that it says it read beyond those that it was sent.
        hole: gives a null in place of its last number.
    """

    def __init__(self, tokenizer: Any, width: int = 2) -> None:
        super().__init__(tokenizer, set())
        self._width = width
        self.tokens = (0, 0)
        self.form = "asked"
        self.rows = "all"
        self.mark = 0
        self.obeys = True
        self.cached: int | None = None
        self.misread = 0
        self.hole = False

    def _write(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        ids = body["prompt"] if path.endswith("completions") else body["input"]
        usage: dict[str, Any] = {"prompt_tokens": len(ids) + self.misread}
        if self.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached}
        if path == "/v1/completions":
            return {"choices": [{"text": "", "logprobs": self._logprobs(ids)}], "usage": usage}
        active = body["use_activation"] or not self.obeys
        if path == "/classify":
            return {"data": [{"probs": self._row(ids, active)}], "usage": usage}
        assert (path, body["task"]) == ("/pooling", "token_classify")
        places = [i for i in range(len(ids)) if self.rows != "marks" or ids[i] == self.mark]
        rows = [self._row(ids[: i + 1], active) for i in places]
        return {"data": [{"data": rows[: -1 if self.rows == "short" else None]}], "usage": usage}

    def _row(self, ids: list[int], active: bool) -> list[float | None]:
        values = outputs(ids, self._width)
        if active:
            powers = [math.exp(value) for value in values]
            values = [p / sum(powers) if self._width > 1 else p / (1 + p) for p in powers]
        return [*values[:-1], None] if self.hole else list(values)

    def _logprobs(self, ids: list[int]) -> dict[str, Any]:
        logits = outputs(ids, 2)
        total = math.log(sum(map(math.exp, logits)))
        told = dict(zip(self.tokens, [logit - total for logit in logits], strict=True))
        if self.form == "others":
            told = {3: -0.1}
        texts = {i: self._decode([i]) for i in told}
        if self.form == "content":
            top = [{"id": i, "token": texts[i], "logprob": told[i]} for i in told]
            return {"content": [{"token": "x", "logprob": -1.0, "top_logprobs": top}]}
        by_id = self.form == "asked"
        return {"top_logprobs": [{f"token_id:{i}" if by_id else texts[i]: told[i] for i in told}]}
