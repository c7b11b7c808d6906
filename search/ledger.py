"""The ledger of one search: reserves before work is sent, settles when its results are in.

Limits count *distinct* tokens, what a cache that never evicts would compute, because only those
are the same in every run; recomputation after an eviction shows in `Usage`.
"""

from __future__ import annotations

import math

from stepsearch.search.errors import ConfigurationError
from stepsearch.search.types import Budget


class Ledger:
    """What is left of a budget.

    Args:
        budget: the limits.
        policy_flops: FLOPs per policy token, None when unknown.
        verifier_flops: FLOPs per verifier token, None when unknown.

    Attributes:
        limits_verifier: whether scoring has to be paid for.
        is_shared: whether sampling and scoring are paid from one limit.
    """

    def __init__(
        self, budget: Budget, policy_flops: float | None, verifier_flops: float | None
    ) -> None:
        if budget.flops is not None and (policy_flops is None or verifier_flops is None):
            raise ConfigurationError(
                "budget.flops needs a policy and a verifier that declare num_parameters; "
                "limit budget.policy_tokens instead"
            )
        self._policy_tokens = _limit(budget.policy_tokens)
        self._verifier_tokens = _limit(budget.verifier_tokens)
        self._completions = _limit(budget.completions)
        self._flops = _limit(budget.flops)
        self._policy_flops = policy_flops or 0.0
        self._verifier_flops = verifier_flops or 0.0
        self.limits_verifier = budget.verifier_tokens is not None or budget.flops is not None
        self.is_shared = budget.flops is not None and self._verifier_flops > 0

    def affordable(self, max_tokens: int) -> float:
        """How many continuations of `max_tokens` tokens could be sent now, not rounded."""
        by_flops = (
            self._flops / (max_tokens * self._policy_flops) if self._policy_flops else math.inf
        )
        return min(self._policy_tokens / max_tokens, self._completions, by_flops)

    def rest(self) -> int:
        """The longest continuation that could be sent now, in tokens."""
        if self._completions < 1:
            return 0
        by_flops = self._flops / self._policy_flops if self._policy_flops else math.inf
        rest = min(self._policy_tokens, by_flops)
        return (1 << 30) if math.isinf(rest) else int(rest)

    def reserve(self, count: int, max_tokens: int) -> None:
        """Take the worst case of `count` continuations; must be affordable."""
        self._policy_tokens -= count * max_tokens
        self._flops -= count * max_tokens * self._policy_flops
        self._completions -= count

    def settle(self, tokens: float, completions: int) -> None:
        """Give back tokens and completions that were reserved and not used."""
        self._policy_tokens += tokens
        self._flops += tokens * self._policy_flops
        self._completions += completions

    def pay_prompt(self, tokens: int) -> None:
        """Pay for the policy's prompt; when it is not affordable, nothing is from then on."""
        self._flops -= tokens * self._policy_flops
        if self._flops < 0:
            self._close()

    def pay_question(self, tokens: int) -> None:
        """Pay for the verifier's reading of the question; as `pay_prompt`."""
        if not self.pay_scoring(tokens):
            self._close()

    def _close(self) -> None:
        self._policy_tokens = self._verifier_tokens = self._completions = self._flops = 0.0

    def pay_scoring(self, tokens: int) -> bool:
        """Pay for verifier tokens; False, and nothing is paid, when they are not affordable."""
        flops = tokens * self._verifier_flops
        if tokens > self._verifier_tokens or flops > self._flops:
            return False
        self._verifier_tokens -= tokens
        self._flops -= flops
        return True


def _limit(value: float | None) -> float:
    return math.inf if value is None else float(value)
