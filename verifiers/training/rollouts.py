"""Rollouts: whole solutions of questions, and continuations of their prefixes, by any policy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from stepsearch.search.background import background
from stepsearch.search.batching import each
from stepsearch.search.contracts import Policy, Samples, SamplingParams
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.seeding import Seeder
from stepsearch.search.task import Task
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.training.lines import Journal, Row
from stepsearch.verifiers.training.questions import Question, read_questions
from stepsearch.verifiers.training.settings import settings_of_policy, settings_of_task


@dataclass(slots=True, kw_only=True)
class Rollouts:
    """Asks a policy for continuations and counts what they cost.

    Attributes:
        policy: who continues.
        sampling: how; `until` should be `end`.
        num_rollouts: continuations so far.
        policy_tokens: tokens generated so far.
        prompt_tokens: prefix tokens computed so far; None once a backend did not tell.
    """

    policy: Policy
    sampling: SamplingParams
    num_rollouts: int = 0
    policy_tokens: int = 0
    prompt_tokens: int | None = 0

    async def __call__(self, chain: Chain, seeds: Sequence[int]) -> list[tuple[Step, ...]]:
        """One continuation of the chain per seed.

        Raises:
            PolicyError: the policy failed, or the chain's token ids are unknown to it.
        """
        found: list[tuple[Step, ...]] = [()] * len(seeds)
        async for some in self.policy.sample([chain] * len(seeds), seeds, self.sampling):
            for sample in some.apart() if isinstance(some, Samples) else (some,):
                found[sample.request] = tuple(sample.steps)
                self._count(sample.steps, sample.prompt_tokens)
        return found

    def _count(self, steps: Sequence[Step], prompt_tokens: int | None) -> None:
        self.num_rollouts += 1
        self.policy_tokens += sum(step.num_tokens for step in steps)
        known = self.prompt_tokens is not None and prompt_tokens is not None
        self.prompt_tokens = self.prompt_tokens + prompt_tokens if known else None  # type: ignore[operator]

    def usage(self) -> dict[str, int | None]:
        """What was spent so far."""
        return {
            "rollouts": self.num_rollouts,
            "policy_tokens": self.policy_tokens,
            "prompt_tokens": self.prompt_tokens,
        }


def seeds_of(run_seed: int, name: str, count: int) -> list[int]:
    """Seeds that depend on the run and on what is continued only, never on timing."""
    return Seeder(run_seed, name).children(Tree(""), ROOT, 0, count)


def sample(
    *,
    policy: Policy,
    policy_config: Mapping[str, Any],
    questions: str,
    out: str,
    n: int,
    seed: int,
    concurrency: int,
    token_ids: bool,
    sampling: SamplingParams,
    task: Task,
) -> Path:
    """The stage `sample`: `n` solutions of every question that has none yet; returns the file.

    A row is the question with `samples`, each with its `text`, `seed`, `stop`, number of `tokens`
    and, with `token_ids`, the ids of every step, which rollouts go on from. `policy_config` is what
    the policy was built from: what is there must have been made with the same.

    Raises:
        ConfigurationError: a setting or file does not fit.
        PolicyError: the policy failed.
    """
    if n < 1 or concurrency < 1:
        raise ConfigurationError(f"n={n} and concurrency={concurrency} must be at least 1")
    if sampling.until != "end":
        raise ConfigurationError("sampling.until must be end: whole solutions are sampled")
    settings = {
        "n": n,
        "seed": seed,
        "token_ids": token_ids,
        "sampling": asdict(sampling),
        "task": settings_of_task(task),
        "policy": settings_of_policy(policy, policy_config),
    }

    async def row(question: Row) -> Row:
        rollouts = Rollouts(policy=policy, sampling=sampling)
        seeds = seeds_of(seed, question["id"], n)
        chain = Tree(question["problem"], task.word(question["problem"])).chain(ROOT)
        samples = await rollouts(chain, seeds)
        found = [_plain(s, i, token_ids) for s, i in zip(samples, seeds, strict=True)]
        return question | {"samples": found, "usage": rollouts.usage()}

    with Journal(out, settings) as journal:
        left = journal.left(_unsolved(q) for q in read_questions(questions))
        work = _write(each(row, left, concurrency), journal, len(left), "sample")
        background.submit(work).result()
        return journal.path


def _unsolved(question: Question) -> Row:
    """The question without its worked solution, on which samples do not depend."""
    row = question.to_row()
    del row["solution"]
    return row


def _plain(steps: Sequence[Step], seed: int, token_ids: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "text": "".join(step.text for step in steps),
        "seed": seed,
        "stop": steps[-1].stop,
        "tokens": sum(step.num_tokens for step in steps),
    }
    if token_ids and all(step.token_ids for step in steps):
        found["steps"] = [{"text": s.text, "token_ids": list(s.token_ids)} for s in steps]
    return found


async def _write(rows: AsyncIterator[Row], journal: Journal, total: int, what: str) -> None:
    with tqdm(total=total, desc=what, unit="question", mininterval=2) as bar:
        async for row in rows:
            journal.append(row)
            bar.update()


async def write_all(rows: AsyncIterator[Row], journal: Journal, total: int) -> None:
    """Append rows as they come, with a progress bar."""
    await _write(rows, journal, total, "label")
