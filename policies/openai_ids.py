"""Continuing one chain on a server by ids."""

from __future__ import annotations

from typing import Any

from stepsearch.policies.chunks import ChunkCutter, Endings
from stepsearch.policies.openai_chains import UNLIMITED, Continued, Server, prompt_tokens
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
        prompts: list[Reply] = []
        while cutter.goes_on:
            reply = await self._server.ask(
                "completions",
                params,
                later_seed(seed, len(written)),
                cutter.allowance,
                prompt=[*start.ids, *written],
                return_token_ids=True,
                skip_special_tokens=False,
                **self._stops(params),
            )
            if reply.ids is None:
                raise PolicyError(
                    "the server sends no token ids (return_token_ids, which vLLM knows), so its"
                    " tokens cannot be continued as they are; set prompts=text"
                )
            if not reply.ids:
                raise PolicyError("the server wrote no token, though it may write some")
            cutter.take(list(reply.ids), None)
            written += reply.ids
            prompts.append(reply)
        return Continued(tuple(cutter.steps), *prompt_tokens(prompts))

    def _stops(self, params: SamplingParams) -> dict[str, Any]:
        if params.until == "end":
            return {"stop_token_ids": list(self._rules.eos_ids)}
        ids = [*self._endings.closing, *self._rules.eos_ids]
        if self._endings.always:
            return {"stop_token_ids": ids}
        return {"stop_token_ids": ids, "stop": [self._rules.separator]}
