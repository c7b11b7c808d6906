"""The two tokens that are read: how servers name them, and what they tell of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from stepsearch.policies.openai_fields import logprob, shown
from stepsearch.verifiers.openai_answers import UnreadableError


class ReadTokens:
    """The good and the bad token of a verifier, by id or by text.

    Args:
        tokenizer: of the verifier.
        good: id of the good token.
        bad: id of the bad token.

    Attributes:
        ids: of the good and the bad token.
        texts: of the same by themselves, for servers that tell no ids.
    """

    def __init__(self, tokenizer: Any, good: int, bad: int) -> None:
        self._tokenizer = tokenizer
        self.ids = (good, bad)
        self.texts = (str(tokenizer.decode([good])), str(tokenizer.decode([bad])))

    def logprobs(self, told: Sequence[tuple[int | str, object]]) -> list[float]:
        """Log-probabilities of the two among those that a server tells.

        Raises:
            UnreadableError: one is not among them, or which one is its own cannot be told.
            BadReplyError: one is no log-probability.
        """
        pairs = zip(self.ids, self.texts, strict=True)
        return [self._logprob(told, token, text) for token, text in pairs]

    def _logprob(self, told: Sequence[tuple[int | str, object]], token: int, text: str) -> float:
        by_id = any(_is_id(name) for name, _ in told)
        if not by_id and text in self._shared:
            raise UnreadableError(
                f"the server tells tokens by text, and {text!r} is the text of the tokens"
                f" {shown(self._shared[text])} alike, so which of them it means cannot be told; let"
                " verifier.base_url lead to a server that tells ids (vLLM, llama.cpp)"
            )
        names = (token, f"token_id:{token}") if by_id else (text,)
        found = [value for name, value in told if name in names]
        if not found:
            raise UnreadableError(
                f"{text!r} ({token}) is not among the {len(told)} most likely tokens that the"
                " server tells; vLLM from 0.26 tells the tokens that it is asked for"
            )
        if len(found) > 1:
            raise UnreadableError(f"the server tells {text!r} ({token}) {len(found)} times")
        return logprob(found[0], f"the logprob of {text!r}")

    @functools.cached_property
    def _shared(self) -> dict[str, list[int]]:
        """Ids of each of the two texts that several tokens have; decodes the whole vocabulary.

        A token for a byte has the text of the letter's own token, and one that begins with a space
        loses it where it is decoded alone.
        """
        size = 1 + max(self._tokenizer.get_vocab().values())
        found: dict[str, list[int]] = {text: [] for text in self.texts}
        for i, text in enumerate(self._tokenizer.batch_decode([[i] for i in range(size)])):
            if text in found:
                found[text].append(i)
        return {text: ids for text, ids in found.items() if len(ids) > 1}


def _is_id(name: int | str) -> bool:
    return isinstance(name, int) or name.startswith("token_id:")
