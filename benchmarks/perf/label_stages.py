"""The stages of one seed: questions, a policy, its samples, labels within a budget, a verifier.

Every stage is the project's own and goes on where it was stopped.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal

from stepsearch.benchmarks.perf.label_setup import CONCURRENCY, FORMAT, SAMPLING, Setup
from stepsearch.benchmarks.perf.small_model import save_small
from stepsearch.benchmarks.training_questions import TrainingQuestions
from stepsearch.benchmarks.word_problems import WordProblems
from stepsearch.conf.stages import load_stage
from stepsearch.policies.transformers import TransformersPolicy
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.task import get_task
from stepsearch.verifiers.training.examples import balanced, labelled_of
from stepsearch.verifiers.training.labelling import LabelSettings, label
from stepsearch.verifiers.training.lines import Row, read_lines, write_lines
from stepsearch.verifiers.training.policy import PolicySettings, train_policy
from stepsearch.verifiers.training.rollouts import sample
from stepsearch.verifiers.training.scorer import ScorerSettings, train_prm
from stepsearch.verifiers.training.settings import changed
from stepsearch.verifiers.training.trainer import Lora, Optimisation

WithoutModel = Literal["outcome", "checker", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages of one seed, in a folder.

    Attributes:
        folder: where everything is written.
        seed: of questions, models, samples and rollouts.
        setup: what is the same for every method.
    """

    folder: Path
    seed: int
    setup: Setup

    def prepare(self) -> None:
        """Questions, policy and samples.

        Raises:
            ConfigurationError: the folder was made with another setup.
        """
        self._require_same()
        self._write_questions()
        self._train_policy()
        self._sample("sampled", self.setup.n)
        self._sample("held", self.setup.num_choices)
        self._sample("far", self.setup.num_choices)

    def policy(self) -> TransformersPolicy:
        """The trained policy."""
        model = str(self.folder / "policy")
        return TransformersPolicy(model=model, prompt_format=FORMAT, device="cpu", max_rows=256)

    def samples(self) -> list[Row]:
        """Samples to label, in the order of their questions, whichever was done first."""
        order = [row["id"] for row in read_lines(self.folder / "sampled.jsonl")]
        found = {row["id"]: row for row in read_lines(self.folder / "sampled-samples.jsonl")}
        return [found[name] for name in order]

    def judged(self, name: str) -> list[Row]:
        """The samples of `held` or `far` with their outcomes."""
        samples = self.folder / f"{name}-samples.jsonl"
        return list(read_lines(self.label_without_model(samples, "outcome")))

    def worked(self) -> dict[str, str]:
        """The worked solution of every question by its id."""
        files = (self.folder / f"{name}.jsonl" for name in ("sampled", "held", "far"))
        return {row["id"]: row["solution"] for file in files for row in read_lines(file)}

    def label_without_model(self, samples: Path, method: WithoutModel) -> Path:
        """Label a file of samples; returns the labelled file."""
        out = samples.with_name(f"{samples.stem}-{method}.jsonl")
        settings = LabelSettings(
            samples=str(samples),
            out=str(out),
            method=method,
            task=get_task("math"),
            sampling=SAMPLING,
        )
        return label(settings, self.policy, {})

    def train_prm(self, name: str, labelled: Path) -> Path:
        """A verifier after `prm_steps` steps, however many examples there are."""
        solutions = balanced([*labelled_of(read_lines(labelled))], 8, self.seed)
        count = sum(any(mark is not None for mark in s.labels) for s in solutions)
        optimisation = self._optimisation(16 * self.setup.prm_steps / max(1, count), 16, 1e-3)
        settings = ScorerSettings(
            labelled=[str(labelled)],
            out=str(self.folder / f"prm-{name}"),
            base=str(self.folder / "policy"),
            held_out=0,
            lora=Lora(rank=64, alpha=64),
            optimisation=optimisation,
        )
        return train_prm(settings, load_stage("prm", ["labelled=-", "out=-"])["format"])

    def _optimisation(self, epochs: float, batch_size: int, learning_rate: float) -> Optimisation:
        return Optimisation(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            evaluations=1,
            checkpoints=1,
            seed=self.seed,
            device="cpu",
        )

    def _write_questions(self) -> None:
        """Questions to teach, to sample and held out, no text twice; `far`: other split."""
        setup, path = self.setup, self.folder / "questions.jsonl"
        ends = [0, *accumulate((setup.num_taught, setup.num_sampled, setup.num_held_out))]
        TrainingQuestions(out=str(path), words=self._words("train", ends[-1])).write()
        rows = list(read_lines(path))
        for name, (start, end) in zip(("taught", "sampled", "held"), pairwise(ends), strict=True):
            write_lines(self.folder / f"{name}.jsonl", rows[start:end])
        far = [
            {"id": p.id, "problem": p.text, "answer": p.answer, "solution": p.meta["solution"]}
            for p in self._words("test", setup.num_far).problems()
        ]
        write_lines(self.folder / "far.jsonl", far)

    def _words(self, split: Literal["train", "test"], limit: int) -> WordProblems:
        """Two subtractions of numbers up to 10: few facts to know, and steps that differ."""
        return WordProblems(
            split=split,
            limit=limit,
            seed=self.seed,
            steps=(2, 2),
            operations="-",
            distractors=(0, 0),
            difficulty=(1, 1),
        )

    def _train_policy(self) -> None:
        taught, base = self.folder / "taught.jsonl", self.folder / "base"
        if not (base / "tokenizer.json").is_file():
            texts = [f"{row['problem']}\n{row['solution']}" for row in read_lines(taught)]
            save_small(base, texts, self.seed)
        settings = PolicySettings(
            questions=[str(taught)],
            out=str(self.folder / "policy"),
            base=str(base),
            held_out=0,
            lora=Lora(rank=0),
            optimisation=self._optimisation(self.setup.policy_epochs, 32, 3e-3),
        )
        train_policy(settings, FORMAT)

    def _sample(self, name: str, n: int) -> None:
        sample(
            policy=self.policy(),
            policy_config={},
            questions=str(self.folder / f"{name}.jsonl"),
            out=str(self.folder / f"{name}-samples.jsonl"),
            n=n,
            seed=self.seed,
            concurrency=CONCURRENCY,
            token_ids=True,
            sampling=SAMPLING,
            task=get_task("math"),
        )

    def _require_same(self) -> None:
        path, now = self.folder / "setup.json", asdict(self.setup)
        if path.is_file() and (names := changed(json.loads(path.read_text()), now)):
            raise ConfigurationError(
                f"{self.folder} was made with other settings ({', '.join(names)}); "
                "give another --out"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(now, indent=1) + "\n")
