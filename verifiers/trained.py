"""Verifiers out of the folders that `stepsearch train prm` and `train orm` write."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepsearch.policies.shipped import VERIFIER_FILE, find_adapter
from stepsearch.search.contracts import VerifierSpec
from stepsearch.search.errors import ConfigurationError, ModelNotFoundError
from stepsearch.verifiers.formats.outcome import OutcomeFormat
from stepsearch.verifiers.formats.spec import StepFormat

if TYPE_CHECKING:
    from stepsearch.verifiers.outcome import OutcomeVerifier
    from stepsearch.verifiers.transformers import TransformersVerifier

_VERSION = 1


def write_spec(
    folder: Path, *, kind: Literal["step", "outcome"], base: str, format: StepFormat | OutcomeFormat
) -> None:
    """Write how the verifier in a folder is fed and read; written last, it marks it complete."""
    spec = {"version": _VERSION, "kind": kind, "base": base, "format": asdict(format)}
    (folder / VERIFIER_FILE).write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")


def read_spec(folder: str | Path) -> dict[str, Any]:
    """Read what `write_spec` wrote.

    Raises:
        ModelNotFoundError: the folder holds no such file.
        ConfigurationError: it is of another form, or stepsearch comes with no adapter of this name.
    """
    path = find_adapter(folder) / VERIFIER_FILE
    if not path.is_file():
        raise ModelNotFoundError(
            f"verifier.model={folder} holds no {VERIFIER_FILE}; give a folder that `stepsearch"
            " train prm` or `stepsearch train orm` wrote, or embedded/prm or embedded/orm"
        )
    try:
        spec: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if spec["version"] != _VERSION or spec["kind"] not in ("step", "outcome"):
            raise ValueError("it has another version or kind")
        spec["base"], spec["format"]["name"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} is no verifier of ours: {error!r}") from error
    return spec


class TrainedVerifier:
    """Makes the verifier that a training folder holds.

    Calling it gives a `TransformersVerifier` for a PRM and an `OutcomeVerifier` for an ORM.

    Args:
        model: the folder, or the name of a shipped one, as of `find_adapter`.
        base: the model below the adapter; None for the one it was trained on, as the folder says.
        name: of the score column; None takes `prm` or `orm`.
        device: as of those two.
        dtype: likewise.
        on_too_long: likewise.
        cache_bytes: likewise.
        selfcheck: likewise.

    Raises:
        ModelNotFoundError: the folder, or its base, are not where they were looked for.
        ConfigurationError: the base is another one, or a setting does not fit.
        VerifierError: the self-check failed.
    """

    def __new__(  # type: ignore[misc]  # the class is the way to make one of two others
        cls,
        *,
        model: str | Path,
        base: str | None = None,
        name: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        on_too_long: Literal["drop", "fail"] = "drop",
        cache_bytes: int = 1 << 30,
        selfcheck: bool = True,
    ) -> TransformersVerifier | OutcomeVerifier:
        """Load the verifier."""
        spec = read_spec(model)
        common: dict[str, Any] = {
            "model": base or spec["base"],
            "adapter": model,
            "format": spec["format"],
            "name": name or _name(spec),
            "device": device,
            "dtype": dtype,
            "on_too_long": on_too_long,
            "cache_bytes": cache_bytes,
            "selfcheck": selfcheck,
        }
        if spec["kind"] == "step":
            from stepsearch.verifiers.transformers import TransformersVerifier

            return TransformersVerifier(**common)
        from stepsearch.verifiers.outcome import OutcomeVerifier

        return OutcomeVerifier(**common)

    @classmethod
    def declare(cls, *, model: str | Path, name: str | None = None, **_: Any) -> VerifierSpec:
        """What the scores mean, told by the folder alone."""
        spec = read_spec(model)
        if spec["kind"] == "outcome":
            return OutcomeFormat.from_mapping(spec["format"]).declare(name or _name(spec))
        return StepFormat.from_mapping(spec["format"]).declare(name or _name(spec))


def _name(spec: dict[str, Any]) -> str:
    return "prm" if spec["kind"] == "step" else "orm"
