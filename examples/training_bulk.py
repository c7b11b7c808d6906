"""Sample whole solutions of many questions on one GPU, in large batches of plain torch.

    python examples/training_bulk.py QUESTIONS.jsonl OUT.jsonl --adapter policy --n 10

What `stepsearch sample` does, without steps and seeds of single chains and so several times faster
where a small model meets a large card. Questions are sampled in rounds of `--round` solutions each,
so that whenever `--seconds` is over all questions have about as many. Running it again goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from stepsearch.policies.loading import find_model, load_tokenizer
from stepsearch.policies.prompt import FILE_NAME, PromptEncoder, PromptFormat
from stepsearch.verifiers.training.questions import Question, is_held_out, read_questions
from stepsearch.verifiers.training.trainer import Lora, with_lora

_COMPACT = 16


def load(base: str, adapter: str | None, device: torch.device) -> Any:
    """The base with the adapter merged into it."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model: Any = AutoModelForCausalLM.from_pretrained(
        find_model(base).location, dtype=torch.float32
    )
    if adapter is not None:
        model = with_lora(model, Lora(start=adapter)).merge_and_unload()
    return model.to(device, dtype).eval()


@torch.no_grad()
def complete(
    model: Any, prompts: Sequence[list[int]], ends: Tensor, length: int, temperature: float
) -> list[list[int]]:
    """Sampled continuations of prompts, at most `length` tokens each, the end token left out.

    Args:
        model: a causal model.
        prompts: ids, one list for every continuation.
        ends: ids that end a continuation.
        length: most tokens.
        temperature: 0 is greedy.
    """
    device = model.device
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
    mask = torch.zeros(len(prompts), longest + length, dtype=torch.long, device=device)
    for i, prompt in enumerate(prompts):
        ids[i, longest - len(prompt) :] = torch.tensor(prompt, device=device)
        mask[i, longest - len(prompt) : longest] = 1
    places = (mask[:, :longest].cumsum(1) - 1).clamp_min(0)
    rows = torch.arange(len(prompts), device=device)
    written = torch.full((len(prompts), length), -1, dtype=torch.long, device=device)
    cache, following = DynamicCache(config=model.config), places[:, -1:] + 1
    for at in range(length):
        width = longest + at
        logits = model(
            input_ids=ids,
            attention_mask=mask[:, :width],
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        if temperature > 0:
            noise = torch.empty_like(logits, dtype=torch.float32).exponential_()
            chosen = ((logits.float() / temperature) - noise.log()).argmax(-1)
        else:
            chosen = logits.argmax(-1)
        written[rows, at] = chosen
        mask[:, width] = 1
        ids, places, following = chosen[:, None], following, following + 1
        if at % _COMPACT == _COMPACT - 1:  # rows that ended are dropped, not computed to the end
            alive = ~torch.isin(written[rows], ends).any(1)
            if not bool(alive.any()):
                break
            if int(alive.sum()) < 0.9 * len(alive):
                keep = alive.nonzero()[:, 0]
                cache.batch_select_indices(keep)
                rows, ids, mask = rows[keep], ids[keep], mask[keep]
                places, following = places[keep], following[keep]
    stop = set(ends.tolist())
    return [_until(line, stop) for line in written.tolist()]


def _until(line: list[int], stop: set[int]) -> list[int]:
    for at, token in enumerate(line):
        if token in stop or token < 0:
            return line[:at]
    return line


def chosen_questions(path: str, which: str, share: float, limit: int | None) -> list[Question]:
    """The questions of a part, sorted by length so that a batch holds alike ones."""
    found = [
        q
        for q in read_questions(path)
        if which == "all" or is_held_out(q.group, share) == (which == "held_out")
    ]
    return sorted(found[:limit], key=lambda q: len(q.problem))


def main() -> None:
    """Sample, and write one line per question."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("questions")
    add("out")
    add("--base", default="embedded")
    add("--adapter")
    add("--part", choices=("all", "training", "held_out"), default="all")
    add("--held-out", type=float, default=0.07)
    add("--source", help="only questions of these sources, comma-separated; held out: originals")
    add("--limit", type=int)
    add("--n", type=int, default=10)
    add("--round", type=int, default=2)
    add("--rows", type=int, default=2048)
    add("--length", type=int, default=256)
    add("--temperature", type=float, default=0.8)
    add("--seconds", type=float, default=1e9)
    add("--seed", type=int, default=0)
    options = parser.parse_args()
    run(options)


def run(options: Any) -> None:
    """Sample in rounds until all questions have `n` solutions or the time is over."""
    began = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load(options.base, options.adapter, device)
    tokenizer: Any = load_tokenizer(options.base)
    ends = torch.tensor([tokenizer.eos_token_id], device=device)
    form = PromptFormat.load(Path(options.adapter or options.base) / FILE_NAME)
    encoder = PromptEncoder(tokenizer, form)
    questions = chosen_questions(options.questions, options.part, options.held_out, options.limit)
    if options.source:
        questions = [q for q in questions if q.source in options.source.split(",")]
    out = Path(options.out)
    parts = out.with_name(out.name + ".rounds")
    parts.mkdir(parents=True, exist_ok=True)
    tokens = 0
    for number in range(-(-options.n // options.round)):
        part = parts / f"{number:03d}.jsonl"
        if part.exists():
            continue
        torch.manual_seed(options.seed * 1000 + number)
        lines, size = [], max(1, options.rows // options.round)
        for start in range(0, len(questions), size):
            if time.perf_counter() - began > options.seconds:
                break
            batch = questions[start : start + size]
            prompts = [encoder.encode(q.problem) for q in batch for _ in range(options.round)]
            found = complete(model, prompts, ends, options.length, options.temperature)
            tokens += sum(map(len, found))
            texts = tokenizer.batch_decode(found, skip_special_tokens=True)
            for i, q in enumerate(batch):
                mine = texts[i * options.round : (i + 1) * options.round]
                lines.append(json.dumps({"id": q.id, "texts": mine}) + "\n")
            took = time.perf_counter() - began
            done = f"round {number}, {min(start + size, len(questions))} of {len(questions)}"
            print(f"{took:.0f} s: {done}, {tokens / took:,.0f} tokens/s", flush=True)
        else:
            part.with_suffix(".torn").write_text("".join(lines), encoding="utf-8")
            part.with_suffix(".torn").rename(part)
            continue
        print("the time is over; complete rounds are kept", flush=True)
        break
    gather(questions, parts, out)


def gather(questions: Sequence[Question], parts: Path, out: Path) -> None:
    """One line per question out of all complete rounds, in the layout of `stepsearch sample`."""
    texts: dict[str, list[str]] = defaultdict(list)
    for part in sorted(parts.glob("*.jsonl")):
        for line in part.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            texts[row["id"]] += row["texts"]
    with out.open("w", encoding="utf-8") as file:
        for q in questions:
            if q.id in texts:
                row = q.to_row() | {"samples": [{"text": text} for text in texts[q.id]]}
                row.pop("solution")
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{out}: {len(texts)} questions, {sum(map(len, texts.values()))} solutions", flush=True)


if __name__ == "__main__":
    main()
