"""What a model's own configuration says about the outputs of its head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepsearch.search.errors import VerifierError
from stepsearch.verifiers.formats.readout import HeadFormat

_GOOD = {"+", "correct", "good", "positive", "right", "true", "valid", "yes"}
_BAD = {"-", "bad", "error", "false", "incorrect", "invalid", "negative", "no", "wrong"}


def check_labels(format: HeadFormat, config: Any) -> None:
    """Compare the good output of a two-class head with the names that the model gives its labels.

    Names such as LABEL_0, or of more or fewer labels than the head has, say nothing.

    Args:
        format: which output is the good one.
        config: the model's configuration, with `id2label`, `label2id` or neither.

    Raises:
        VerifierError: a name says that the other output is the good one.
    """
    by_index: Mapping[Any, str] = getattr(config, "id2label", None) or {}
    by_name: Mapping[str, Any] = getattr(config, "label2id", None) or {}
    if format.num_outputs != 2 or 2 not in (len(by_index), len(by_name)):
        return
    labels = [(int(index), str(name)) for index, name in by_index.items()]
    labels += [(int(index), str(name)) for name, index in by_name.items()]
    for index, name in labels:
        word = name.strip().lower()
        said = index if word in _GOOD else 1 - index if word in _BAD else None
        if said not in (None, format.good):
            raise VerifierError(
                f"the model's config.json names output {index} {name!r}, but format.head.good="
                f"{format.good}: the labels are swapped; set verifier.format.head.good={said}"
            )
