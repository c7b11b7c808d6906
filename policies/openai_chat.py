"""Whole answers from a chat endpoint, cut into steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepsearch.policies.openai_chains import UNLIMITED, Continued, Server, counted, prompt_tokens
from stepsearch.policies.openai_replies import Reply
from stepsearch.policies.sampling import Token
from stepsearch.policies.text import ChainReader, StepCutter, StepRules
from stepsearch.search.contracts import SamplingParams
from stepsearch.search.errors import PolicyError
from stepsearch.search.tree import Chain
from stepsearch.search.types import Step, Stop


class AsChat:
    """Whole answers only: a chat cannot go on with a partial answer."""

    def __init__(self, server: Server, system: str | None, rules: StepRules) -> None:
        self._server, self._system, self._rules = server, system, rules

    def check(self, chain: Chain, params: SamplingParams) -> None:
        """Raise `PolicyError` for anything but a whole answer from the start."""
        if len(chain) or params.until == "step":
            raise PolicyError(
                "prompts=chat writes whole answers: a chat endpoint begins a new turn and cannot"
                " go on with a partial answer, which step search needs; use search=best_of_n (or"
                " greedy), or a server with /completions and prompts=ids or prompts=text"
            )

    async def run(self, chain: Chain, seed: int, params: SamplingParams) -> Continued:
        """Write a whole answer, cut into steps where the server tells its tokens."""
        system = [{"role": "system", "content": self._system}] if self._system else []
        reply = await self._server.ask(
            "chat/completions",
            params,
            seed,
            params.max_tokens,
            messages=[*system, {"role": "user", "content": chain.prompt}],
            logprobs=True,
        )
        count = counted(reply, params.max_tokens)
        texts = _texts(reply, count)
        if texts is None:
            steps: tuple[Step, ...] = (Step(text=reply.text, stop=_told(reply), count=count),)
        else:
            steps = _cut(reply, texts, count, self._rules, params)
        return Continued(steps, *prompt_tokens([reply]))


def _told(reply: Reply) -> Stop:
    return "budget" if reply.end == "length" else "eos"


def _texts(reply: Reply, count: int) -> list[str] | None:
    """What each token adds to the answer: nothing beyond it, as special tokens would.

    None when the server does not tell its tokens, or these are not those of the answer.
    """
    if reply.pieces is None or len(reply.pieces) > count:
        return None
    if not "".join(reply.pieces).startswith(reply.text):
        return None
    texts, rest = [], reply.text
    for piece in reply.pieces:
        texts.append(piece[: len(rest)])
        rest = rest[len(piece) :]
    return texts


def _cut(
    reply: Reply, texts: Sequence[str], count: int, rules: StepRules, params: SamplingParams
) -> tuple[Step, ...]:
    """Steps out of the texts of tokens; all tokens that the server wrote are counted.

    Those that it does not show, such as its reasoning, stand before the answer and count for the
    first step, those behind the end of the chain for the last.
    """
    assert reply.logprobs is not None
    cutter, numbers = _cutter(reply, texts, rules, params)
    goes_on, taken = True, 0
    while goes_on and taken < len(numbers):
        goes_on = cutter.push(Token(numbers[taken], reply.logprobs[taken], 0.0))
        taken += 1
    if goes_on:
        cutter.close()
    steps = [
        Step(text=step.text, stop=step.stop, logprob=step.logprob, count=step.num_tokens)
        for step in cutter.steps
    ]
    if not any(texts[taken:]):
        steps[-1] = replace(steps[-1], stop=_last(steps[-1].stop, goes_on, reply))
    steps[0] = _with_unseen(steps[0], count - len(numbers))
    steps[-1] = _with_unseen(steps[-1], len(numbers) - taken)
    return tuple(steps)


def _cutter(
    reply: Reply, texts: Sequence[str], rules: StepRules, params: SamplingParams
) -> tuple[StepCutter, list[int]]:
    """A cutter, and the numbers that it knows the tokens by."""
    tokens = list(zip(reply.pieces or (), texts, strict=True))
    known = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    by_number = [text for _, text in known]
    own = StepRules(separator=rules.separator, final_prefix=rules.final_prefix, eos_ids=())
    reader = ChainReader(lambda ids: "".join(by_number[i] for i in ids), params.max_repeats)
    return StepCutter(reader, own, params, UNLIMITED), [known[token] for token in tokens]


def _last(stop: Stop, goes_on: bool, reply: Reply) -> Stop:
    """How an answer ended that was cut to its end: as the server tells, but for our own ends."""
    told = _told(reply)
    if not goes_on and (stop in ("eos", "loop") or (stop, told) == ("length", "budget")):
        return stop
    return told


def _with_unseen(step: Step, count: int) -> Step:
    """A step with tokens that are not in its text; how likely these were is not known."""
    return replace(step, count=step.num_tokens + count, logprob=None) if count else step
