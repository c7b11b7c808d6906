"""Labels without a model, by several processes: how the task gets there."""

from __future__ import annotations

import dataclasses
import functools
import io
import multiprocessing
import pickle
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from stepsearch.search.errors import ConfigurationError
from stepsearch.verifiers.training.lines import Row
from stepsearch.verifiers.training.outcome import OutcomeLabels


def label_apart(labels: OutcomeLabels, rows: Iterable[Row], workers: int) -> Iterator[Row]:
    """Labelled rows, in the order of the rows, by so many processes.

    Raises:
        ConfigurationError: the task cannot be sent to other processes, or made there.
    """
    sent = functools.partial(_label, _packed(labels, workers))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(sent, rows, chunksize=16)


class _Sender(pickle.Pickler):
    """Sends all that an object holds, as pickle does or refuses to.

    The exception are frozen dataclasses with slots: `dataclass` gives them a method that tells
    pickle of fields alone, also where a plain subclass holds more, which would be lost silently.
    """

    def reducer_override(self, value: Any) -> Any:
        """The whole state of such a dataclass; everything else goes as it does by default."""
        if isinstance(value, type) or not _tells_fields_alone(type(value)):
            return NotImplemented
        made = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)[:2]
        return *made, object.__getstate__(value), None, None, _restore


def _tells_fields_alone(kind: type) -> bool:
    if getattr(kind.__getstate__, "__module__", None) != dataclasses.__name__:
        return False
    own = {name for base in kind.__mro__ if base is not object for name in vars(base)}
    return own.isdisjoint({"__reduce__", "__reduce_ex__"})  # else the class says how it is sent


def _restore(value: object, state: Any) -> None:
    """Past `__setattr__`, which is frozen; a state is a dictionary, or a pair with the slots."""
    held, slots = state if isinstance(state, tuple) else (state, None)
    if held:
        vars(value).update(held)
    for name, content in (slots or {}).items():
        object.__setattr__(value, name, content)


def _packed(labels: OutcomeLabels, workers: int) -> bytes:
    packed = io.BytesIO()
    try:
        _Sender(packed).dump(labels)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"workers={workers}: the task {labels.task.name!r} cannot be sent to other processes "
            f"({error}); give workers=1"
        ) from error
    return packed.getvalue()


@functools.cache
def _unpacked(packed: bytes) -> OutcomeLabels:
    """In a worker, for all of its rows."""
    try:
        labels: OutcomeLabels = pickle.loads(packed)
    except (AttributeError, ImportError, TypeError) as error:
        raise ConfigurationError(
            f"workers: the task cannot be made in other processes ({error}); give workers=1, or "
            "keep its class in a module that can be imported"
        ) from error
    return labels


def _label(packed: bytes, row: Row) -> Row:
    return _unpacked(packed)(row)
