"""Labels without a model, by several processes: how the task gets there."""

from __future__ import annotations

import functools
import io
import multiprocessing
import pickle
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, is_dataclass
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
    """Sends a dataclass as its settings: what a task works with, as a pool, is made anew there."""

    def reducer_override(self, value: Any) -> Any:
        """A call that makes the dataclass again; everything else goes as it does by default."""
        if not is_dataclass(value) or isinstance(value, type):
            return NotImplemented
        own = {f.name: getattr(value, f.name) for f in fields(value) if f.init and f.compare}
        return functools.partial(type(value), **own), ()


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
