"""One line of the table of `gpu_tax`."""

from __future__ import annotations

from dataclasses import dataclass

from stepsearch.benchmarks.perf.gpu_rounds import (
    Run,
    Tax,
    middle_round,
    middle_seconds,
    tax_of,
)

AIMS = {"best_of_n": 1.05, "beam": 1.25, "dvts": 1.25, "mcts": 1.25}
AIMED = ("0.5b", "1.5b")
COLUMNS = "{:<9}{:<11}{:>4}{:>8}{:>9}{:>9}{:>8}{:>10}{:>8}{:>12}  {:<19}{:>7}{:>12}{:>12}{:>10}  {}"
HEAD = COLUMNS.format(
    *("model", "search", "P", "tokens", "requests", "path", "rounds", "search s", "raw s"),
    *(
        "raw seeded",
        "tax [range]",
        "aim",
        "passes",
        "rows",
        "rate",
        "processor time over wall time",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: rounds of a search, and each one's raw runs without and with seeds.

    Of the kinds of raw runs one may be left out, but no round of a kind.
    """

    model: str
    search: str
    concurrency: int
    requests: int = 0
    path: int = 0
    longest: int = 0
    runs: tuple[Run, ...] = ()
    raw: tuple[Run, ...] = ()
    raw_seeded: tuple[Run, ...] = ()

    @property
    def faster_raw(self) -> tuple[Run, ...]:
        """The kind of raw run that has the smaller median."""
        return min(filter(None, (self.raw, self.raw_seeded)), key=middle_seconds)

    @property
    def tax(self) -> Tax:
        """Wall time of the search over that of the faster kind of raw run."""
        return tax_of(self.runs, self.faster_raw)

    def line(self) -> str:
        """The row as text."""
        middle = middle_round(self.runs, self.faster_raw)
        ours, theirs = self.runs[middle], self.faster_raw[middle]
        return COLUMNS.format(
            *(self.model, self.search, self.concurrency, ours.tokens, self.requests),
            f"{self.path}/{self.longest}",
            *(len(self.runs), _seconds(self.runs), _seconds(self.raw), _seconds(self.raw_seeded)),
            *(str(self.tax), self._verdict()),
            f"{ours.passes}/{theirs.passes}",
            f"{ours.mean_rows:.0f}/{theirs.mean_rows:.0f}",
            *(f"{ours.tokens / ours.seconds:.0f}/s", ours.host),
        )

    def _verdict(self) -> str:
        if self.concurrency < 64 or self.model not in AIMED:
            return ""
        aim = AIMS[self.search]
        return f"<={aim}" if self.tax.middle <= aim else f">{aim}!"


def _seconds(runs: tuple[Run, ...]) -> str:
    return f"{middle_seconds(runs):.2f}" if runs else "-"
