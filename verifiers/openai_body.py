"""A model behind a server whose scores verifiers read, in the place of one in memory."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from stepsearch.policies.loading import load_tokenizer
from stepsearch.policies.openai_client import OpenAIClient, Patience, RefusedError
from stepsearch.policies.openai_fields import BadReplyError
from stepsearch.policies.openai_models import set_length, set_size
from stepsearch.search.contracts import ScoreFailure, StepScores
from stepsearch.search.errors import ConfigurationError, VerifierError
from stepsearch.search.parameters import as_dict
from stepsearch.verifiers.formats.readout import HeadFormat, TokensFormat
from stepsearch.verifiers.heads import Head
from stepsearch.verifiers.model_verifier import scored
from stepsearch.verifiers.openai_answers import UnreadableError
from stepsearch.verifiers.openai_routes import ByClassifier, ByCompletion, ByTokens, Route, Served
from stepsearch.verifiers.openai_tokens import ReadTokens
from stepsearch.verifiers.tokens import token_ids

RouteName = Literal["completions", "pooling", "classify"]
_NEEDS = {
    "completions": (
        "/completions needs a language model, and a server that tells the log-probabilities of as"
        " many tokens as it is asked for: fewer by +verifier.options.logprobs=5"
    ),
    "pooling": (
        "/pooling needs a model that vLLM serves with the task token_classify; one that it serves"
        " with the task classify is read by verifier.route=classify"
    ),
    "classify": (
        "/classify needs a model that vLLM serves with the task classify; one that it serves with"
        " the task token_classify is read by verifier.route=pooling"
    ),
}
_THIS_INPUT = frozenset({400, 413, 422})
"""What a server answers to an input that it will not take; other refusals are for all inputs."""


class OpenAIBody:
    """A connection that reads sequences, in the place of `Body`.

    Args:
        model: its name on the server.
        format: what is read.
        route: by which of the server's routes; two tokens are read by `completions`, a head by
            `pooling` or `classify`.
        base_url: of the server, with the version.
        tokenizer: a folder or hub name; None takes `model`.
        revision: of a hub tokenizer.
        api_key_variable: environment variable that holds the key; it may be unset.
        max_length: longest sequence; None takes what the server tells.
        num_parameters: for budgets of FLOPs; None when unknown.
        server: how it is asked, by the names of `Patience`.
        options: what else stands in every request.

    Raises:
        ModelNotFoundError: no server answers, it lacks the model, or there is no tokenizer.
        ConfigurationError: a setting does not fit, or the server does not tell how long a sequence
            may be.
        VerifierError: the two tokens are not what the format says.
    """

    def __init__(
        self,
        model: str,
        *,
        format: HeadFormat | TokensFormat,
        route: RouteName,
        base_url: str,
        tokenizer: str | Path | None = None,
        revision: str | None = None,
        api_key_variable: str = "OPENAI_API_KEY",
        max_length: int | None = None,
        num_parameters: int | None = None,
        server: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        _check_route(route, format)
        max_length = set_length("verifier.max_length", max_length)
        self.num_parameters = set_size("verifier.num_parameters", num_parameters)
        self.tokenizer = load_tokenizer(tokenizer or model, revision)
        self._salted = False
        extra = as_dict("verifier.options", options)
        self.client = OpenAIClient(base_url, api_key_variable, Patience.from_mapping(server))
        with self.client.closed_on_error():
            known = self.client.context_length(model, max_length)
            self._longest = _longest(known, route)
            served = Served(self.client, model, extra)
            self._route = self._routed(served, route, format)
        self.provenance: dict[str, Any] = {
            "backend": "openai",
            "base_url": base_url,
            "model": model,
            "tokenizer": str(tokenizer or model),
            "adapter": None,
            "route": route,
            "options": extra,
        }

    def _routed(self, served: Served, route: RouteName, format: HeadFormat | TokensFormat) -> Route:
        if isinstance(format, TokensFormat):
            tokens = ReadTokens(self.tokenizer, *token_ids(format, self.tokenizer))
            return ByCompletion(served, tokens)
        way = ByTokens if route == "pooling" else ByClassifier
        return way(served, format.num_outputs)

    def head(self, format: HeadFormat | TokensFormat) -> Head:
        """What makes a score of what the server gives."""
        if isinstance(format, HeadFormat):
            return Head((), format)
        return Head((), HeadFormat(num_outputs=2, activation="softmax", good=0))

    async def read(
        self, name: str, ids: Sequence[int], positions: Sequence[int], head: Head
    ) -> StepScores:
        """What a head says at some positions, or the typed failure of this sequence alone.

        Raises:
            ConnectionError, TimeoutError: the server did not answer in all attempts.
            VerifierError: it refused for good, or answered what cannot be read in all attempts.
        """
        extra = {"cache_salt": secrets.token_hex(16), "cache_prompt": False} if self._salted else {}
        asked = self.client.loop.submit(self._route.read(ids, positions, **extra))
        try:
            found = await asyncio.wrap_future(asked)
        except UnreadableError as error:
            return _missing(str(error))
        except RefusedError as error:
            if error.status in _THIS_INPUT:
                return _missing(str(error))
            raise VerifierError(f"{name}: the server refuses: {error}") from error
        except (BadReplyError, ValueError) as error:
            raise VerifierError(f"{name}: {error}") from error
        values = scored(head.scores(found.rows), 0, 0)
        return replace(values, tokens=found.computed, tokens_reused=found.reused)

    def check(self, ids: Sequence[int], positions: Sequence[int]) -> None:
        """Read one sequence: refuse a server that cannot, or that squeezes a head's outputs itself.

        A head's outputs are asked for without activation; a server that applies its own all the
        same would give scores that were squeezed twice, and look like scores.

        Raises:
            VerifierError: what is wrong and what to do.
        """
        plain = self._probe(ids, positions)
        if self.provenance["route"] == "completions":
            return
        active = self._probe(ids, positions, use_activation=True)
        if _is_activated(plain) and plain.allclose(active):
            raise VerifierError(
                "the server applies an activation of its own to the outputs of the head"
                f" ({plain[-1].tolist()} with use_activation=false and with true alike), so they"
                " cannot be read; use vLLM from 0.25"
            )

    def _probe(self, ids: Sequence[int], positions: Sequence[int], **extra: Any) -> Tensor:
        asked = self.client.loop.submit(self._route.read(ids, positions, **extra))
        try:
            return asked.result().rows
        except RefusedError as error:
            route = self.provenance["route"]
            raise VerifierError(
                f"the server refuses route={route}: {error}. {_NEEDS[route]}"
            ) from error
        except ValueError as error:
            raise VerifierError(str(error)) from error
        except (UnreadableError, ConnectionError, TimeoutError) as error:
            raise VerifierError(f"the server gives no score: {error}") from error

    def max_length(self, limit: int | None) -> int:
        """The longest input: the format's limit or the server's."""
        return min(limit or self._longest, self._longest)

    @contextlib.contextmanager
    def uncached(self) -> Iterator[OpenAIBody]:
        """The same connection, the server's cache unread: vLLM by a salt, llama.cpp by a switch."""
        other = copy.copy(self)
        other._salted = True
        yield other

    def close(self) -> None:
        """Close all connections. Closing twice does nothing."""
        self.client.close()


def _is_activated(rows: Tensor) -> bool:
    """Whether a head's outputs look like probabilities."""
    inside = bool(((rows >= 0) & (rows <= 1)).all())
    return inside and (rows.shape[1] == 1 or rows.sum(1).allclose(torch.ones(len(rows))))


def _missing(why: str) -> StepScores:
    return StepScores(failure=ScoreFailure("missing", why), tokens=None, tokens_reused=None)


def _check_route(route: str, format: HeadFormat | TokensFormat) -> None:
    if route not in get_args(RouteName):
        raise ConfigurationError(
            f"verifier.route={route!r} is not one of {', '.join(get_args(RouteName))}"
        )
    if (route == "completions") != isinstance(format, TokensFormat):
        raise ConfigurationError(
            f"verifier.route={route!r} does not fit format.head: two tokens of a language model are"
            " read by route=completions, a head by route=pooling or route=classify"
        )


def _longest(known: int | None, route: RouteName) -> int:
    if known is None:
        raise ConfigurationError(
            "the server does not tell how long a sequence may be (max_model_len); set"
            " verifier.max_length to the model's context, so that nothing is cut"
        )
    return known - 1 if route == "completions" else known
