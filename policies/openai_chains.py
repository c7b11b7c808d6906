"""Continuing one chain on a server, and how this is done by text."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from stepsearch.policies.openai_client import OpenAIClient
from stepsearch.policies.openai_prompts import TextPrompts
from stepsearch.policies.openai_replies import Reply, read_reply
from stepsearch.policies.parts import later_seed
from stepsearch.policies.starts import Starts
from stepsearch.policies.text import StepRules, is_open
from stepsearch.search.contracts import SamplingParams
from stepsearch.search.errors import PolicyError
from stepsearch.search.tree import Chain
from stepsearch.search.types import Step, Stop

_SEED_BITS = (1 << 31) - 1
UNLIMITED = 1 << 30


class Continued(NamedTuple):
    """What a continuation gave.

    Attributes:
        steps: the new steps.
        computed: prompt tokens computed; None when the server does not tell.
        reused: prompt tokens reused; None when the server does not tell.
        surplus: tokens that the server wrote behind the end, which are in no step.
    """

    steps: tuple[Step, ...]
    computed: int | None
    reused: int | None
    surplus: int = 0


class Server(NamedTuple):
    """Whom to ask, and for what.

    Attributes:
        client: the connection.
        model: its name on the server.
        max_length: longest sequence; None when unknown.
        options: what else stands in every request.
        eos_ids: tokens at which the model ends.
    """

    client: OpenAIClient
    model: str
    max_length: int | None
    options: Mapping[str, Any]
    eos_ids: Collection[int] = ()

    async def ask(
        self, path: str, params: SamplingParams, seed: int, max_tokens: int, **body: Any
    ) -> Reply:
        """One request for one choice; asked again when the answer is malformed."""
        sampling: dict[str, Any] = {
            "model": self.model,
            "n": 1,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": seed & _SEED_BITS,
            "max_tokens": max_tokens,
        }
        if params.top_k:
            sampling["top_k"] = params.top_k
        asked_for = frozenset(body.get("stop_token_ids", ())) - frozenset(self.eos_ids)
        read = functools.partial(read_reply, stop_ids=asked_for)
        return await self.client.post(path, sampling | body | dict(self.options), read)


class Continuation(Protocol):
    """One way to continue chains."""

    def check(self, chain: Chain, params: SamplingParams) -> None:
        """Raise `PolicyError` when it cannot continue this chain."""
        ...

    async def run(self, chain: Chain, seed: int, params: SamplingParams) -> Continued:
        """Continue a chain."""
        ...


class ByText:
    """Text in and out, one request a step: the server tokenises the text anew every time.

    A stop string is cut off by the server and put back here, so what its last token carried beyond
    the separator is lost. Loops are noticed among whole steps only.
    """

    def __init__(self, server: Server, starts: Starts, rules: StepRules) -> None:
        self._server, self._rules = server, rules
        self._prompts = TextPrompts(starts, server.options)

    def check(self, chain: Chain, params: SamplingParams) -> None:
        """Raise `PolicyError` when the chain has ended, or its question is no mere text."""
        self._prompts.check(chain.prompt)
        if len(chain) and chain.newest.stop != "step":
            raise PolicyError(f"a chain that ended by {chain.newest.stop!r} cannot be continued")

    async def run(self, chain: Chain, seed: int, params: SamplingParams) -> Continued:
        """Continue a chain."""
        prompt = self._prompts.text(chain.prompt) + chain.text
        before = list(chain.texts)
        steps: list[Step] = []
        replies: list[Reply] = []
        left, room = params.max_tokens, self._room(prompt)
        while True:
            later = later_seed(seed, len(replies))
            step = await self._step(prompt, room, later, params, left, replies)
            if step.stop == "step" and _repeats([*before, step.text], params.max_repeats):
                step = Step(text=step.text, stop="loop", count=step.num_tokens)
            steps.append(step)
            before.append(step.text)
            prompt += step.text
            left -= step.num_tokens
            whole = params.until == "step" or len(steps) >= params.max_steps
            if step.stop != "step" or whole or left < 1 or (room := self._room(prompt)) < 1:
                return Continued(tuple(steps), *prompt_tokens(replies))

    def _room(self, text: str) -> int:
        """Tokens that fit behind a text."""
        if self._server.max_length is None:
            return UNLIMITED
        return self._server.max_length - self._prompts.count_tokens(text)

    async def _step(
        self,
        prompt: str,
        room: int,
        seed: int,
        params: SamplingParams,
        left: int,
        replies: list[Reply],
    ) -> Step:
        text, count, most = "", 0, min(left, params.max_step_tokens)
        while room > 0:
            limit = min(most - count, room)
            reply = await self._server.ask(
                "completions",
                params,
                later_seed(seed, count),
                limit,
                prompt=prompt + text,
                stop=[self._rules.separator],
            )
            self._check_stop(reply)
            replies.append(reply)
            new = counted(reply, limit)
            count += new
            text += reply.text
            at_limit = _limit(params, count, is_full=new == room and count < left)
            stop = self._stop(reply, at_limit)
            if stop == "step" and not reply.text.endswith(self._rules.separator):
                text += self._rules.separator
            if stop != "step":
                return Step(text=text, stop=stop, count=count)
            if text.strip() and not is_open(text):
                prefix = self._rules.final_prefix
                final = prefix is not None and text.lstrip().startswith(prefix)
                return Step(text=text, stop="eos" if final else "step", count=count)
            if count >= most:
                return Step(text=text, stop=at_limit, count=count)
            room = self._room(prompt + text)
        return Step(text=text, stop="context", count=count)

    def _check_stop(self, reply: Reply) -> None:
        """Raise `PolicyError` when the server wrote on behind the separator: that is no step."""
        separator = self._rules.separator
        if reply.text.partition(separator)[2].strip():
            raise PolicyError(
                f"the server wrote on behind the separator {separator!r}, at which it was told to"
                " stop (stop), so its text is no step; use a server that knows stop, or"
                " prompts=chat with search=best_of_n"
            )

    def _stop(self, reply: Reply, at_limit: Stop) -> Stop:
        match reply.end:
            case "eos":
                return "eos"
            case "stopped":
                return "step"
            case "length":
                return at_limit
        if reply.text.endswith(self._rules.separator):
            return "step"
        raise PolicyError(
            "the server does not tell whether its text stopped at the separator or at the model's"
            " end: its answer has neither stop_reason (vLLM) nor matched_stop (SGLang), and the"
            " separator is cut off. Use one of these servers, or prompts=chat with"
            " search=best_of_n"
        )


def counted(reply: Reply, limit: int) -> int:
    """Tokens of an answer; budgets rest on them.

    Raises:
        PolicyError: the server does not tell, tells what cannot be, or wrote more than it may.
    """
    if reply.num_tokens is None:
        raise PolicyError(
            "the server does not tell how many tokens it wrote (usage.completion_tokens), so a"
            " budget cannot be kept; use another server"
        )
    least = int(bool(reply.text) or reply.end == "stopped")  # the separator was written, too
    if reply.num_tokens < least:
        raise PolicyError(
            f"the server tells of {reply.num_tokens} tokens (usage.completion_tokens) where it"
            f" wrote {least} at least, so a budget cannot be kept; use another server"
        )
    if reply.num_tokens > limit:
        raise PolicyError(f"the server wrote {reply.num_tokens} tokens where {limit} were allowed")
    return reply.num_tokens


def _limit(params: SamplingParams, count: int, *, is_full: bool) -> Stop:
    if count >= params.max_step_tokens:
        return "length"
    return "context" if is_full else "budget"


def _repeats(texts: Sequence[str], max_repeats: int) -> bool:
    last = texts[-max_repeats:] if max_repeats else []
    return max_repeats > 0 and len(last) == max_repeats and len(set(last)) == 1


def prompt_tokens(replies: Sequence[Reply]) -> tuple[int | None, int | None]:
    """Prompt tokens computed and reused; None when one answer does not tell."""
    computed, reused = 0, 0
    for reply in replies:
        if reply.prompt_tokens is None or reply.cached is None:
            return None, None
        computed += reply.prompt_tokens - reply.cached
        reused += reply.cached
    return computed, reused
