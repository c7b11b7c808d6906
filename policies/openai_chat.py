"""Whole answers from a chat endpoint, cut into steps."""

from __future__ import annotations

from math import nan

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
        if reply.pieces is not None and "".join(reply.pieces).startswith(reply.text):
            steps = _cut(reply, self._rules, params)
        else:
            stop: Stop = "budget" if reply.end == "length" else "eos"
            steps = (Step(text=reply.text, stop=stop, count=count),)
        return Continued(steps, *prompt_tokens([reply]))


def _cut(reply: Reply, rules: StepRules, params: SamplingParams) -> tuple[Step, ...]:
    """Steps out of the texts of tokens, which are given numbers of their own."""
    assert reply.pieces is not None
    pieces = reply.pieces
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    by_number = list(numbers)
    own = StepRules(separator=rules.separator, final_prefix=rules.final_prefix, eos_ids=())
    reader = ChainReader(lambda ids: "".join(by_number[i] for i in ids), params.max_repeats)
    cutter = StepCutter(reader, own, params, UNLIMITED)
    goes_on = True
    for piece, logprob in zip(pieces, reply.logprobs or [nan] * len(pieces), strict=True):
        if goes_on:
            goes_on = cutter.push(Token(numbers[piece], logprob, 0.0))
    if goes_on:
        cutter.close()
    return tuple(
        Step(text=step.text, stop=step.stop, logprob=step.logprob, count=step.num_tokens)
        for step in cutter.steps
    )
