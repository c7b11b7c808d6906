"""Prompts as text, so that a server which tokenises them reads the ids of the prompt's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepsearch.policies.starts import Starts


class TextPrompts:
    """Prompts as text, without what a server's tokenizer puts before every text by itself.

    Args:
        starts: prompts as ids.
        options: what stands in every request.
    """

    def __init__(self, starts: Starts, options: Mapping[str, Any]) -> None:
        self._starts = starts
        adds = options.get("add_special_tokens", True)  # which vLLM obeys
        self._put_before = _put_before(starts.tokenizer) if adds else ()

    def text(self, question: str) -> str:
        """The prompt of a question."""
        ids = self._starts.prompt(question)
        added = len(self._put_before)
        return self._starts.decode(ids[added:] if ids[:added] == self._put_before else ids)


def _put_before(tokenizer: Any) -> tuple[int, ...]:
    """What a tokenizer puts before a text by itself, such as a beginning-of-sequence token."""
    alone = tokenizer.encode("a", add_special_tokens=False, verbose=False)
    whole = tokenizer.encode("a", verbose=False)
    before = whole[: len(whole) - len(alone)]
    return tuple(before) if whole == [*before, *alone] else ()
