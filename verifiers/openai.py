"""Process and outcome reward models behind a server: vLLM's, or any with completions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from stepsearch.search.errors import ConfigurationError
from stepsearch.verifiers.formats.encoding import EncodedChain
from stepsearch.verifiers.formats.outcome import OutcomeFormat
from stepsearch.verifiers.formats.readout import TokensFormat
from stepsearch.verifiers.formats.spec import StepFormat
from stepsearch.verifiers.model_verifier import HeadVerifier, check_on_too_long
from stepsearch.verifiers.openai_body import OpenAIBody, RouteName
from stepsearch.verifiers.outcome import OutcomeVerifier
from stepsearch.verifiers.selfcheck import require
from stepsearch.verifiers.stepwise import chain_of
from stepsearch.verifiers.transformers import TransformersVerifier

_PROBE = chain_of("What is 1 + 1?", ["1 + 1 = 2", "The answer is 2."])


class _HasServer(HeadVerifier):
    def _connect(
        self,
        form: StepFormat | OutcomeFormat,
        body: OpenAIBody,
        name: str,
        *,
        on_too_long: str,
        selfcheck: bool,
    ) -> None:
        with body.client.closed_on_error():
            self._load(form, body, name, on_too_long=on_too_long, selfcheck=False)
            probe = self.encode(_PROBE)
            if isinstance(probe, EncodedChain):
                body.check(probe.ids, probe.positions)
            if selfcheck:
                require(self)

    def close(self) -> None:
        """Close all connections. Closing twice does nothing."""
        for body in self._bodies:
            assert isinstance(body, OpenAIBody)
            body.close()


class OpenAIVerifier(_HasServer, TransformersVerifier):
    """Scores every step as `TransformersVerifier` does, by a model that a server runs.

    What is sent are ids, so the input is the one that the format says, whatever the server's own
    tokenizer would make of it. A server that is out of reach is an error of the search, never a
    score.

    Args:
        base_url: of the server, with the version: `http://localhost:8000/v1`.
        model: its name on the server.
        format: how the model is fed and read; a mapping is turned into a `StepFormat`.
        name: the name of the score column.
        tokenizer: a folder or hub name; None takes `model`.
        route: what is asked of the server: `completions` for two tokens of a language model,
            `pooling` (a row for every token, or every step mark) or `classify` (one for the last
            token) for a head; None takes `completions` or `pooling`.
        api_key_variable: environment variable that holds the key; it may be unset.
        max_length: longest sequence; None takes what the server tells.
        num_parameters: for budgets of FLOPs; None when unknown.
        server: how it is asked, by the names of `Patience`.
        options: what else stands in every request, such as `logprobs`.
        on_too_long: see `TransformersVerifier`.
        selfcheck: score a few probes now and refuse to load when they come out wrong.
        revision: of a hub tokenizer.
        adapter: must be None: the server was started with its model.
        device: must be `auto`, likewise.
        dtype: must be `auto`, likewise.
        cache_bytes: must be None, likewise.

    Raises:
        ModelNotFoundError: no server answers, it lacks the model, or there is no tokenizer.
        ConfigurationError: a setting does not fit.
        VerifierError: as for `TransformersVerifier`, or the server cannot be read this way.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        format: StepFormat | Mapping[str, Any],
        name: str = "prm",
        tokenizer: str | Path | None = None,
        route: RouteName | None = None,
        api_key_variable: str = "OPENAI_API_KEY",
        max_length: int | None = None,
        num_parameters: int | None = None,
        server: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        on_too_long: Literal["drop", "fail"] = "drop",
        selfcheck: bool = True,
        revision: str | None = None,
        adapter: None = None,
        device: Literal["auto"] = "auto",
        dtype: Literal["auto"] = "auto",
        cache_bytes: None = None,
    ) -> None:
        check_on_too_long(on_too_long)
        _refuse(adapter=adapter, device=device, dtype=dtype, cache_bytes=cache_bytes)
        self.format = StepFormat.from_mapping(format)
        head = self.format.head
        body = OpenAIBody(
            model,
            format=head,
            route=route or ("completions" if isinstance(head, TokensFormat) else "pooling"),
            base_url=base_url,
            tokenizer=tokenizer,
            revision=revision,
            api_key_variable=api_key_variable,
            max_length=max_length,
            num_parameters=num_parameters,
            server=server,
            options=options,
        )
        self._connect(self.format, body, name, on_too_long=on_too_long, selfcheck=selfcheck)


class OpenAIOutcomeVerifier(_HasServer, OutcomeVerifier):
    """Scores whole chains as `OutcomeVerifier` does, by a model that a server runs.

    Args: as for `OpenAIVerifier`, with an `OutcomeFormat`; a head is read by `classify` unless
    `route` says otherwise.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        format: OutcomeFormat | Mapping[str, Any],
        name: str = "orm",
        tokenizer: str | Path | None = None,
        route: RouteName | None = None,
        api_key_variable: str = "OPENAI_API_KEY",
        max_length: int | None = None,
        num_parameters: int | None = None,
        server: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        on_too_long: Literal["drop", "fail"] = "drop",
        selfcheck: bool = True,
        revision: str | None = None,
        adapter: None = None,
        device: Literal["auto"] = "auto",
        dtype: Literal["auto"] = "auto",
        cache_bytes: None = None,
    ) -> None:
        check_on_too_long(on_too_long)
        _refuse(adapter=adapter, device=device, dtype=dtype, cache_bytes=cache_bytes)
        self.format = OutcomeFormat.from_mapping(format)
        head = self.format.head
        body = OpenAIBody(
            model,
            format=head,
            route=route or ("completions" if isinstance(head, TokensFormat) else "classify"),
            base_url=base_url,
            tokenizer=tokenizer,
            revision=revision,
            api_key_variable=api_key_variable,
            max_length=max_length,
            num_parameters=num_parameters,
            server=server,
            options=options,
        )
        self._connect(self.format, body, name, on_too_long=on_too_long, selfcheck=selfcheck)


def _refuse(**settings: object) -> None:
    """Settings of a model in memory, which a server's cannot honour."""
    for name, value in settings.items():
        if value not in (None, "auto"):
            raise ConfigurationError(
                f"verifier.{name}={value}: the server runs the model as it was started; set it"
                " there"
            )
