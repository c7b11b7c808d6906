"""What the units of measure of two sides say about whether the sides may be compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from stepsearch.verifiers.equations.arithmetic import SCALES, Scale, Unit, evaluate
from stepsearch.verifiers.equations.expressions import Expression
from stepsearch.verifiers.equations.tokens import Number, Token


def contradict(tokens: Sequence[Token], left: Expression, right: Expression) -> bool:
    """Whether the result is in a unit the left side does not lead to: `50 cents * 2 = $100`.

    A rate in the result (`$750/week`) is no unit of what was counted.
    """
    if right.core < len(tokens) and tokens[right.core].text == "/":
        return False
    given = _scales(left) | {SCALES[word] for word in left.words if word in SCALES}
    return any(
        result.quantity == scale.quantity and result not in given and _is_lost(left, scale, result)
        for result in _scales(right)
        for scale in given
    )


def _scales(side: Expression) -> set[Scale]:
    names = (*side.units, "dollar") if side.is_money else side.units
    return {SCALES[name] for name in names}


def _is_lost(left: Expression, scale: Scale, result: Scale) -> bool:
    """Whether nothing in the left side can have converted the one unit into the other."""
    if not {"*", "/"} & set(left.code):
        return True
    if scale.system != result.system:
        return False  # the size of a kilometer in miles is written in many ways
    ratio = scale.size / result.size
    factors = [item for item in left.code if not isinstance(item, str | Unit)]
    return not {ratio, 1 / ratio} & _products(factors)


def _products(factors: Sequence[Number]) -> set[Number]:
    """The factors, and products in a row of two or three but not all: `2 weeks * 7 * 24`."""
    pairs = [a * b for a, b in pairwise(factors)] if len(factors) > 2 else []
    triples = [a * b for a, b in zip(pairs, factors[2:], strict=False)] if len(factors) > 3 else []
    return {*factors, *pairs, *triples}


def mixes_units(left: Expression, right: Expression, exact: Number) -> bool:
    """Whether converting a unit, said or not, could explain the mismatch."""
    sizes = {SCALES[name].size for name in left.units | right.units}
    if len(sizes) < 2:
        return False
    if any(op in side.code for side in (left, right) for op in "+-"):
        return True
    value = evaluate(right.code)
    return bool(value) and any(exact * a == value * b for a in sizes for b in sizes)  # type: ignore[operator]
