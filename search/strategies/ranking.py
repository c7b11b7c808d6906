"""Which nodes a search may keep, and what they are worth."""

from collections.abc import Sequence

from stepsearch.search.session import Session


def values_of(session: Session, nodes: Sequence[int]) -> dict[int, float]:
    """The values of the nodes that may be kept, in the order given.

    A node without a value (its score failed) is never kept, nor is a chain that was cut short (stop
    `length`, `context`, `budget` or `loop`): it is neither finished nor can it go on.
    """
    tree, values = session.tree, map(session.value, nodes)
    return {
        node: value
        for node, value in zip(nodes, values, strict=True)
        if value is not None and tree.stop(node) in ("step", "eos")
    }
