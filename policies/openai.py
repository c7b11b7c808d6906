"""A policy behind an OpenAI-compatible server: vLLM, SGLang, llama.cpp, or a hosted one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from stepsearch.policies.bridge import ask_all
from stepsearch.policies.chunks import find_endings
from stepsearch.policies.description import describe
from stepsearch.policies.loading import load_tokenizer
from stepsearch.policies.openai_access import read_key
from stepsearch.policies.openai_chains import ByText, Continuation, Server
from stepsearch.policies.openai_chat import AsChat
from stepsearch.policies.openai_client import OpenAIClient, Patience, RefusedError
from stepsearch.policies.openai_ids import ByIds
from stepsearch.policies.openai_models import set_length, set_size
from stepsearch.policies.prompt import PromptFormat
from stepsearch.policies.starts import Starts, choose_format
from stepsearch.policies.text import StepRules
from stepsearch.search.contracts import PolicySpec, Sample, SamplingParams
from stepsearch.search.errors import ConfigurationError, ModelNotFoundError, PolicyError
from stepsearch.search.parameters import as_dict
from stepsearch.search.tree import Chain

Prompts = Literal["ids", "text", "chat"]


class OpenAIPolicy:
    """Samples steps from a server, one request per continuation or, by text, per step.

    With `prompts=ids` chains are token-exact, as in process. With `prompts=text` the server
    tokenises the text anew for every step. With `prompts=chat` only whole answers can be had. The
    same seed gives the same step only where the server promises it; some ignore seeds.

    Args:
        base_url: of the server, with the version: `http://localhost:8000/v1`.
        model: its name on the server.
        tokenizer: a folder or hub name, for prompts as ids or text; None takes `model`.
        prompt_format: None for the template's defaults. A chat uses its system turn, separator and
            final prefix only; the template is the server's.
        prompts: `ids` for servers that take and return ids (vLLM), `text`, or `chat`.
        api_key_variable: environment variable that holds the key; it may be unset.
        max_length: longest sequence; None takes what the server tells.
        num_parameters: for budgets of FLOPs; None when unknown.
        server: how it is asked, by the names of `Patience`.
        options: what else stands in every request, such as `min_p`.

    Attributes:
        spec: name and provenance.
        client: the connection.
        continues: whether it goes on with partial chains, as a chat cannot.
        num_surplus: tokens that were written behind the end of a chain and left out.

    Raises:
        ModelNotFoundError: no server answers, it lacks the model, or there is no tokenizer.
        ConfigurationError: a setting does not fit.
    """

    spec: PolicySpec

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        tokenizer: str | Path | None = None,
        prompt_format: PromptFormat | Mapping[str, Any] | None = None,
        prompts: Prompts = "ids",
        api_key_variable: str = "OPENAI_API_KEY",
        max_length: int | None = None,
        num_parameters: int | None = None,
        server: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if prompts not in get_args(Prompts):
            raise ConfigurationError(
                f"prompts={prompts!r} is not one of {', '.join(get_args(Prompts))}"
            )
        max_length = set_length("policy.max_length", max_length)
        num_parameters = set_size("policy.num_parameters", num_parameters)
        form = choose_format(prompt_format, None)
        extra = as_dict("policy.options", options)
        self.client = OpenAIClient(base_url, api_key_variable, Patience.from_mapping(server))
        self.num_surplus = 0
        self._starts: Starts | None = None
        with self.client.closed_on_error():
            length = self.client.context_length(model, max_length)
            found = Server(self.client, model, length, extra)
            self._way = self._continuation(found, tokenizer or model, form, prompts)
        self.continues = prompts != "chat"
        self._key = api_key_variable
        self.spec = PolicySpec(
            name=model,
            num_parameters=num_parameters,
            provenance={
                "backend": "openai",
                "base_url": base_url,
                "model": model,
                "tokenizer": None if prompts == "chat" else str(tokenizer or model),
                "prompts": prompts,
                "prompt_format": form.to_mapping(),
                "template_hash": self._starts and self._starts.template_hash,
                "options": extra,
            },
        )

    def _continuation(
        self, server: Server, tokenizer: str | Path, form: PromptFormat, prompts: Prompts
    ) -> Continuation:
        if prompts == "chat":
            rules = StepRules(
                separator=form.separator, final_prefix=form.final_prefix, eos_ids=frozenset()
            )
            return AsChat(server, form.system, rules)
        try:
            self._starts = Starts(load_tokenizer(tokenizer), form)
            eos_ids = self._starts.end_ids(describe(tokenizer).eos_ids)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(
                f"prompts={prompts} needs the model's tokenizer here, not its weights: {error}; set"
                " policy.tokenizer to its folder or its name on the hub, or policy.prompts=chat"
            ) from error
        rules = StepRules(separator=form.separator, final_prefix=form.final_prefix, eos_ids=eos_ids)
        server = server._replace(eos_ids=eos_ids)
        if prompts == "text":
            return ByText(server, self._starts, rules)
        return ByIds(server, self._starts, rules, find_endings(self._starts.tokenizer, rules))

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[Sample, None]:
        """Continue `chains[i]` with `seeds[i]`; see `Policy.sample`.

        Requests that nobody waits for any more are dropped with their connection.

        Raises:
            PolicyError: the server refused or stayed out of reach, or the chain cannot be
                continued this way.
        """
        for chain in {id(chain): chain for chain in chains}.values():
            self._way.check(chain, params)
        works = [
            functools.partial(self._continue, i, chain, seed, params)
            for i, (chain, seed) in enumerate(zip(chains, seeds, strict=True))
        ]
        async with contextlib.aclosing(ask_all(self.client.loop, works)) as samples:
            async for sample in samples:
                yield sample

    async def _continue(
        self, request: int, chain: Chain, seed: int, params: SamplingParams
    ) -> Sample:
        try:
            found = await self._way.run(chain, seed, params)
        except RefusedError as error:
            raise PolicyError(
                f"the server of {self.spec.name} refuses: {error}{self._advice(error.status)}"
            ) from error
        except (ConnectionError, TimeoutError, ValueError) as error:
            raise PolicyError(f"the server of {self.spec.name} failed: {error}") from error
        self.num_surplus += found.surplus
        return Sample(request, found.steps, found.computed, found.reused)

    def _advice(self, status: int) -> str:
        """What to look at after a refusal."""
        if status in (401, 403):
            there = "is set" if read_key(self._key) else "is not set"
            return f"; the key is that of the variable {self._key}, which {there}"
        if status in (404, 405) and self.continues:
            return (
                "; correct policy.base_url, or where a server has nothing but chats set"
                " policy.prompts=chat search=best_of_n"
            )
        if status in (404, 405):
            return "; correct policy.base_url, or set policy.prompts=ids where there are no chats"
        if status in (400, 422) and self.spec.provenance["prompts"] == "ids":
            return "; a server that takes no ids as a prompt needs policy.prompts=text"
        return ""

    def count_prompt_tokens(self, prompt: str) -> int:
        """Tokens of the rendered prompt.

        Raises:
            PolicyError: prompts=chat, where only the server knows.
        """
        if self._starts is None:
            raise PolicyError("prompts=chat: only the server knows how long a prompt is")
        return len(self._starts.prompt(prompt))

    def close(self) -> None:
        """Close all connections. Closing twice does nothing."""
        self.client.close()
