"""Traces: one JSON line per problem with the whole tree, versioned, with provenance."""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from stepsearch.search.aggregate import AGGREGATIONS, chain_value
from stepsearch.search.columns import decode_tree, encode_tree
from stepsearch.search.contracts import Aggregation
from stepsearch.search.errors import TraceError
from stepsearch.search.plain import plain
from stepsearch.search.select import (
    Choice,
    Selection,
    candidates,
    choose,
    require_known,
    require_vote_weight,
)
from stepsearch.search.task import Task
from stepsearch.search.tree import Tree
from stepsearch.search.types import Problem, Solution, SolutionStop, Usage

VERSION = 2
_MISSING = object()
_ALWAYS_KNOWN = ("policy_tokens", "policy_calls", "verifier_calls", "completions", "seconds")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One search as it was saved.

    Attributes:
        problem: the problem, with its gold answer.
        answer, score, stop, error, usage: those of the solution.
        node: the last node of the chosen chain; None when there was none.
        tree: the whole tree.
        provenance: versions, models, parameters and seeds.
    """

    problem: Problem
    answer: str | None
    score: float | None
    stop: SolutionStop
    error: str | None
    usage: Usage
    node: int | None
    tree: Tree
    provenance: Mapping[str, Any]

    def select(
        self,
        by: Selection,
        *,
        task: Task,
        verifier: str | None = None,
        aggregation: Aggregation | None = None,
        vote_weight: float | None = None,
    ) -> Choice:
        """Read the answer out again in another way.

        Args:
            by: the selection.
            task: extracts and compares answers.
            verifier: name of a score column; default: that of the search.
            aggregation: default: that of the search.
            vote_weight: exponent of the votes in `weighted`; default: that of the search.

        Raises:
            TraceError: the tree has no scores of that verifier.
            ConfigurationError: there is no such selection, or a weight that is none.
        """
        require_known(by)
        saved = self.provenance.get("verifier")
        saved = saved if isinstance(saved, Mapping) else {}
        name = verifier or str(saved.get("name"))
        if by != "majority" and name not in self.tree.scores:
            raise TraceError(
                f"the trace of problem {self.problem.id!r} has no scores of verifier {name!r}; "
                f"it has: {', '.join(self.tree.scores) or 'none'}"
            )
        fold = aggregation or self.provenance.get("aggregation")
        if fold not in AGGREGATIONS:
            raise TraceError(f"the trace has aggregation {fold!r}; give aggregation=...")
        found = candidates(self.tree, task, lambda node: chain_value(self.tree, node, name, fold))
        if vote_weight is None:
            vote_weight = self.provenance.get("vote_weight", 1.0)
        require_vote_weight(vote_weight)
        return choose(found, by, task.equal, vote_weight)


class TraceWriter:
    """Appends traces to a file; the file is made when the first trace is written.

    What JSON does not know, in `Problem.meta` or a plug-in's provenance, is written as its text.

    Args:
        path: the file.
        provenance: written into every line.
    """

    def __init__(self, path: str | Path, provenance: Mapping[str, Any]) -> None:
        self._path = Path(path)
        self._provenance = _json(plain(provenance))
        self._lock = threading.Lock()

    def write(self, solution: Solution) -> None:
        """Append one line. A last line that was cut by a crash is kept apart, not continued."""
        self.append(_line(solution, self._provenance))

    def append(self, line: str) -> None:
        """Append a line that was encoded elsewhere."""
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab+") as file:
                if file.tell() > 0:
                    file.seek(-1, 2)
                    if file.read(1) != b"\n":
                        file.write(b"\n")
                file.write(line.encode() + b"\n")


def encode(solution: Solution, provenance: Mapping[str, Any]) -> str:
    """One trace as one line of JSON."""
    return _line(solution, _json(plain(provenance)))


def _line(solution: Solution, provenance: str) -> str:
    """One trace, with the provenance as JSON already: it is the same in every line."""
    problem = solution.problem
    own = _json(
        plain(
            {
                "version": VERSION,
                "id": problem.id,
                "problem": problem.text,
                "gold": problem.answer,
                "meta": problem.meta,
                "answer": solution.answer,
                "score": solution.score,
                "stop": solution.stop,
                "error": solution.error,
                "node": solution.node,
                "usage": asdict(solution.usage),
            }
        )
    )
    tree = _json(encode_tree(solution.tree))
    return f'{own[:-1]},"tree":{tree},"provenance":{provenance}}}'


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, default=plain, separators=(",", ":"))


def decode(line: str | bytes) -> Trace:
    """The inverse of `encode`.

    Raises:
        TraceError: the line is not a trace of this version, or it is damaged.
    """
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"the line is not complete JSON: {error}") from error
    return from_json(data)


def from_json(data: Any) -> Trace:
    """A trace from its JSON values; raises as `decode`."""
    if not isinstance(data, dict) or data.get("version") != VERSION:
        found = data.get("version") if isinstance(data, dict) else None
        raise TraceError(f"the trace has version {found!r}; this program reads version {VERSION}")
    tree = decode_tree(_field(data, "tree", dict))
    return Trace(
        problem=Problem(
            text=_field(data, "problem", str),
            id=_field(data, "id", str),
            answer=_field(data, "gold", str | None),
            meta=_field(data, "meta", dict),
        ),
        answer=_field(data, "answer", str | None),
        score=_finite(data, "score"),
        stop=_one_of(data, "stop", get_args(SolutionStop)),
        error=_field(data, "error", str | None),
        usage=_usage(_field(data, "usage", dict)),
        node=_node(data, len(tree)),
        tree=tree,
        provenance=_field(data, "provenance", dict),
    )


def _field(data: Mapping[str, Any], name: str, kind: Any) -> Any:
    """A field of the trace, which must be there and of a kind."""
    value = data.get(name, _MISSING)
    if value is _MISSING or not isinstance(value, kind) or isinstance(value, bool):
        shown = "missing" if value is _MISSING else f"{value!r:.100}"
        raise TraceError(f"the trace is damaged: {name} is {shown}")
    return value


def _finite(data: Mapping[str, Any], name: str) -> float | None:
    value: float | None = _field(data, name, int | float | None)
    if value is not None and not math.isfinite(value):
        raise TraceError(f"the trace is damaged: {name} is {value}")
    return value


def _one_of(data: Mapping[str, Any], name: str, known: Sequence[str]) -> Any:
    value = _field(data, name, str)
    if value not in known:
        raise TraceError(f"the trace is damaged: {name} is {value!r:.100}")
    return value


def _node(data: Mapping[str, Any], num_nodes: int) -> int | None:
    node: int | None = _field(data, "node", int | None)
    if node is not None and not 0 <= node < num_nodes:
        raise TraceError(f"the trace is damaged: node is {node} in a tree of {num_nodes}")
    return node


def _usage(data: Mapping[str, Any]) -> Usage:
    for name, default in asdict(Usage()).items():
        kind = type(default) | int
        value = _field(data, name, kind if name in _ALWAYS_KNOWN else kind | None)
        if value is not None and not 0 <= value < math.inf:
            raise TraceError(f"the trace is damaged: {name} is {value}")
    return Usage(**{name: data[name] for name in asdict(Usage())})


def read(path: str | Path) -> Iterator[Trace]:
    """Read the traces of a file one by one.

    A line that is not complete JSON was cut by a crash: it is left out with a warning in the log.

    Raises:
        TraceError: the file does not exist, or holds something else than traces.
    """
    if not Path(path).is_file():
        raise TraceError(f"cannot read the traces in {str(path)!r}: there is no such file")
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                data = json.loads(line)
            except ValueError:
                _log.warning("%s: line %d is cut short and left out", path, number)
                continue
            except RecursionError as error:
                raise TraceError(f"{path}, line {number}: nested too deeply") from error
            try:
                trace = from_json(data)
            except TraceError as error:
                raise TraceError(f"{path}, line {number}: {error}") from error
            yield trace
