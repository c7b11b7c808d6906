"""Which nodes a search may keep, and what they are worth."""

from collections.abc import Sequence

from stepsearch.search.session import Session
from stepsearch.search.steps import STOP_CODES

_ENTIRE = (STOP_CODES["step"], STOP_CODES["eos"])


def values_of(session: Session, nodes: Sequence[int]) -> dict[int, float]:
    """The values of the nodes that may be kept, in the order given.

    A node without a value (its score failed) is never kept, nor is a chain that was cut short (stop
    `length`, `context`, `budget` or `loop`): it is neither finished nor can it go on.
    """
    stops = session.tree.stop_code
    return {
        node: value
        for node, value in zip(nodes, session.values(nodes), strict=True)
        if value is not None and stops[node] in _ENTIRE
    }
