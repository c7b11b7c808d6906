"""Sample whole solutions with vLLM from an adapter that is merged into its base.

    python examples/training_sample.py POLICY QUESTIONS.jsonl:OUT.jsonl:64:0.8 [...]

What `stepsearch sample policy=vllm` does, but several files with one engine, at the speed of a
model without an adapter, and from the engine's one generator: no two runs are alike.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
from pathlib import Path

import torch

from stepsearch.policies.loading import load_tokenizer
from stepsearch.policies.prompt import FILE_NAME, PromptFormat
from stepsearch.policies.vllm import VllmPolicy
from stepsearch.search.contracts import SamplingParams
from stepsearch.search.task import MathTask
from stepsearch.verifiers.training.rollouts import sample
from stepsearch.verifiers.training.trainer import Lora, load_base, with_lora


def merged(adapter: str, base: str) -> Path:
    """The base with the adapter in its weights, as a model of its own beside the adapter."""
    folder = Path(adapter.rstrip("/") + "-merged")
    if not (folder / "config.json").is_file():
        model = with_lora(load_base(base, "cpu"), Lora(start=adapter)).merge_and_unload()
        load_tokenizer(base).save_pretrained(folder)
        model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def main() -> None:
    """Merge, start the engine, sample every file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("adapter", help="folder of the policy's adapter")
    add("jobs", nargs="+", help="QUESTIONS:OUT:N:TEMPERATURE")
    add("--base", default="embedded")
    add("--seqs", type=int, default=1024, help="most solutions in one batch")
    add("--seconds", type=int, default=0, help="stop after so long; the same command goes on")
    add("--eager", action="store_true", help="no compilation: starts faster, runs slower")
    add("--cache", type=float, default=8e9, help="bytes for keys and values")
    options = parser.parse_args()
    policy = VllmPolicy(
        model=merged(options.adapter, options.base),
        prompt_format=PromptFormat.load(Path(options.adapter) / FILE_NAME),
        seeded=False,
        engine={
            "max_seqs": options.seqs,
            "max_length": 1024,
            "cache_bytes": int(options.cache),
            "eager": options.eager,
        },
    )
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(options.seconds)
    with contextlib.suppress(KeyboardInterrupt):
        for job in options.jobs:
            _sample(policy, options, job)
    policy.close()


def _sample(policy: VllmPolicy, options: argparse.Namespace, job: str) -> None:
    questions, out, n, temperature = job.split(":")
    sample(
        policy=policy,
        policy_config={"adapter": options.adapter},
        questions=questions,
        out=out,
        n=int(n),
        seed=0,
        concurrency=max(8, 2 * options.seqs // int(n)),
        token_ids=False,
        sampling=SamplingParams(
            until="end", temperature=float(temperature), max_step_tokens=128, max_tokens=320
        ),
        task=MathTask(),
    )


if __name__ == "__main__":
    main()
