"""Which nodes a search may keep, and what they are worth."""

from collections.abc import Iterable

from stepsearch.search.session import Session


def values_of(session: Session, nodes: Iterable[int]) -> dict[int, float]:
    """The values of the nodes that may be kept, in the order given.

    A node without a value (its score failed) is never kept, nor is a chain that was cut short (stop
    `length`, `context`, `budget` or `loop`): it is neither finished nor can it go on.
    """
    tree = session.tree
    values = {node: session.value(node) for node in nodes if tree.stop(node) in ("step", "eos")}
    return {node: value for node, value in values.items() if value is not None}
