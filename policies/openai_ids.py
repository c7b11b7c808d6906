"""Continuing one chain on a server by ids."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from stepsearch.policies.chunks import ChunkCutter, Endings
from stepsearch.policies.openai_chains import UNLIMITED, Continued, Server, counted, prompt_tokens
from stepsearch.policies.openai_replies import Reply
from stepsearch.policies.parts import later_seed
from stepsearch.policies.starts import Starts
from stepsearch.policies.text import StepRules
from stepsearch.search.contracts import SamplingParams
from stepsearch.search.errors import PolicyError
from stepsearch.search.tree import Chain
from stepsearch.search.types import Step


class ByIds:
    """Token-exact: ids in and out, for servers that give ids back (vLLM)."""

    def __init__(self, server: Server, starts: Starts, rules: StepRules, endings: Endings) -> None:
        self._server, self._starts = server, starts
        self._rules, self._endings = rules, endings

    def check(self, chain: Chain, params: SamplingParams) -> None:
        """Raise `PolicyError` when the chain's ids are unknown."""
        self._starts.history(chain)

    async def run(self, chain: Chain, seed: int, params: SamplingParams) -> Continued:
        """Continue a chain."""
        start = self._starts.start(chain, params)
        room = (self._server.max_length or UNLIMITED) - len(start.ids)
        if room < 1:
            return Continued((Step(text="", stop="context", logprob=0.0),), 0, 0)
        cutter = ChunkCutter(start.reader, self._rules, params, room, self._endings)
        written: list[int] = []
        surplus = 0
        replies: list[Reply] = []
        while cutter.goes_on:
            reply, ids = await self._ask([*start.ids, *written], seed, len(written), cutter, params)
            kept = self._without_end(reply, ids)
            surplus += len(ids) - len(kept)
            cutter.take(kept, None)
            written += kept
            replies.append(reply)
            if self._is_over(reply, kept, params):
                _end(cutter)
            elif not kept:
                raise PolicyError("the server wrote no token, though it may write some")
        surplus += cutter.num_surplus
        return Continued(tuple(cutter.steps), *prompt_tokens(replies), surplus)

    async def _ask(
        self, prompt: list[int], seed: int, begun: int, cutter: ChunkCutter, params: SamplingParams
    ) -> tuple[Reply, list[int]]:
        """One request: an answer, and the ids that it holds."""
        allowance, stops = cutter.allowance, self._stops(params)
        reply = await self._server.ask(
            "completions",
            params,
            later_seed(seed, begun),
            allowance,
            prompt=prompt,
            return_token_ids=True,
            skip_special_tokens=False,
            **stops,
        )
        if reply.ids is None:
            raise PolicyError(
                "the server sends no token ids (return_token_ids, which vLLM knows), so its"
                " tokens cannot be continued as they are; set prompts=text"
            )
        counted(reply, allowance)
        _check_stops(reply.ids, stops["stop_token_ids"])
        return reply, list(reply.ids)

    def _stops(self, params: SamplingParams) -> dict[str, Any]:
        if params.until == "end":
            return {"stop_token_ids": list(self._rules.eos_ids)}
        ids = [*self._endings.closing, *self._rules.eos_ids]
        if self._endings.always:
            return {"stop_token_ids": ids}
        return {"stop_token_ids": ids, "stop": [self._rules.separator]}

    def _without_end(self, reply: Reply, ids: list[int]) -> list[int]:
        """The ids but for an end token that only the server knows, which would be read as text."""
        unknown = reply.end_id is not None and reply.end_id not in self._rules.eos_ids
        return ids[:-1] if unknown and ids[-1:] == [reply.end_id] else ids

    def _is_over(self, reply: Reply, ids: list[int], params: SamplingParams) -> bool:
        """Whether the model ended, though its end token may not be among the ids.

        To the end of a chain nothing else was asked to stop it; a step stops at separators, too.
        """
        if reply.end == "length":
            return False
        if params.until == "end" or reply.end_id is not None:
            return True
        if reply.end == "stopped" or (ids and ids[-1] in self._endings.closing):
            return False
        return self._rules.separator not in self._starts.decode(ids)


def _check_stops(ids: Sequence[int], stops: Collection[int]) -> None:
    """Raise `PolicyError` when the server wrote on behind a token that it was told to stop at."""
    known = frozenset(stops)
    place = next((i for i, token in enumerate(ids[:-1]) if token in known), None)
    if place is not None:
        raise PolicyError(
            f"the server wrote {len(ids) - place - 1} tokens behind token {ids[place]}, at which it"
            " was told to stop (stop_token_ids, which vLLM knows), so a budget cannot be kept; set"
            " prompts=text"
        )


def _end(cutter: ChunkCutter) -> None:
    """End the chain where the tokens end: the model did, whatever limit they reached with it."""
    if cutter.goes_on:
        cutter.close()
        cutter.goes_on = False
    elif cutter.num_surplus or cutter.steps[-1].stop in ("eos", "loop"):
        return
    cutter.steps[-1] = replace(cutter.steps[-1], stop="eos", logprob=None)
