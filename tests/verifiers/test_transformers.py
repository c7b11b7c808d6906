"""The token-level step verifier, against full re-scoring with transformers itself."""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from support.formats import shipped_format
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from stepsearch.search.contracts import StepScores, Verifier
from stepsearch.search.errors import ConfigurationError, ModelNotFoundError, VerifierError
from stepsearch.search.tree import Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.formats.encoding import EncodedChain
from stepsearch.verifiers.transformers import TransformersVerifier

QUESTION = "There are 12 eggs and 3 are eaten. How many are left?"


def format_of(name: str, **changes: Any) -> dict[str, Any]:
    return shipped_format(name, **changes)


class Setup(NamedTuple):
    """A verifier, a full re-scoring that owes nothing to it, and its text of a step."""

    verifier: TransformersVerifier
    oracle: Any
    ids: Any


def line_ids(tokenizer: Any, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
    """Prompt and steps as the formats' descriptions say, and the positions of the marks."""
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    return _append(tokenizer, ids, steps, "\n")


def trl_ids(tokenizer: Any, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
    """As TRL's trainer tokenises a row."""
    ids = [tokenizer.bos_token_id, *tokenizer(question, add_special_tokens=False)["input_ids"]]
    return _append(tokenizer, ids, steps, "\n\n")


def _append(
    tokenizer: Any, ids: list[int], steps: Sequence[str], mark: str
) -> tuple[list[int], list[int]]:
    positions = []
    for step in steps:
        ids = ids + tokenizer(step.rstrip(), add_special_tokens=False)["input_ids"]
        ids = ids + tokenizer(mark, add_special_tokens=False)["input_ids"]
        positions.append(len(ids) - 1)
    return ids, positions


@pytest.fixture(scope="module")
def line(base_folder: Path, adapter_folder: Path) -> Setup:
    tokenizer = AutoTokenizer.from_pretrained(base_folder)
    base = AutoModelForCausalLM.from_pretrained(base_folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(adapter_folder)).eval()
    tensors = load_file(adapter_folder / "adapter_model.safetensors")

    @torch.no_grad()
    def oracle(question: str, steps: Sequence[str]) -> list[float]:
        ids, positions = line_ids(tokenizer, question, steps)
        output = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
        hidden = output.hidden_states[-1][0, positions]
        logits = hidden @ tensors["score.weight"].T + tensors["score.bias"]
        values: list[float] = logits[:, 0].sigmoid().tolist()
        return values

    verifier = TransformersVerifier(
        model=base_folder, adapter=adapter_folder, format=format_of("line_prm"), dtype="float32"
    )
    return Setup(verifier, oracle, lambda q, s: line_ids(tokenizer, q, s)[0])


@pytest.fixture(scope="module")
def trl(classifier_folder: Path) -> Setup:
    tokenizer = AutoTokenizer.from_pretrained(classifier_folder)
    model = AutoModelForTokenClassification.from_pretrained(classifier_folder).eval()

    @torch.no_grad()
    def oracle(question: str, steps: Sequence[str]) -> list[float]:
        ids, positions = trl_ids(tokenizer, question, steps)
        logits = model(input_ids=torch.tensor([ids])).logits[0, positions]
        values: list[float] = logits.softmax(dim=-1)[:, 1].tolist()
        return values

    verifier = TransformersVerifier(
        model=classifier_folder, format=format_of("trl_prm"), dtype="float32"
    )
    return Setup(verifier, oracle, lambda q, s: trl_ids(tokenizer, q, s)[0])


@pytest.fixture(params=["line", "trl"])
def setup(request: pytest.FixtureRequest) -> Setup:
    found: Setup = request.getfixturevalue(request.param)
    return found


def fresh(setup: Setup, target: Path, **changes: Any) -> Setup:
    """The same with a runner of its own, in which nothing is cached."""
    provenance = setup.verifier.spec.provenance
    shutil.copytree(provenance["model"], target / "copy")
    verifier = TransformersVerifier(
        model=target / "copy",
        adapter=provenance["adapter"],
        format=setup.verifier.format,
        dtype="float32",
        **changes,
    )
    return setup._replace(verifier=verifier)


def score(verifier: Verifier, *chains: Chain) -> list[StepScores]:
    return asyncio.run(verifier.score(chains))


def chain_of(*texts: str, question: str = QUESTION, num_new: int = -1) -> Chain:
    return Tree(question).chain(0, tuple(Step(text=t) for t in texts), num_new=num_new)


def grow(tree: Tree, depth: int, width: int) -> Iterator[list[int]]:
    """Levels of a tree of different texts, in which every other node is expanded."""
    level = [0]
    for d in range(depth):
        parents = level[::2]
        level = [
            tree.add(p, Step(text=f"After {d} they have {p} * {i} + 7 = {p * i + 7} left.\n"))
            for p in parents
            for i in range(width)
        ]
        yield level


def test_satisfies_the_contract(setup: Setup) -> None:
    assert isinstance(setup.verifier, Verifier)


def test_a_tree_scored_step_by_step_equals_full_rescoring(setup: Setup) -> None:
    tree = Tree(f"{QUESTION} (tree)")
    seen = []
    for level in grow(tree, depth=4, width=3):
        results = score(setup.verifier, *(tree.chain(n, num_new=1) for n in level))
        for node, result in zip(level, results, strict=True):
            chain = tree.chain(node)
            assert result.failure is None
            assert len(result.values) == 1
            expected = setup.oracle(chain.question, chain.texts)[-1]
            assert result.values[0] == pytest.approx(expected, abs=1e-5)
            seen.append(result.values[0])
    assert statistics.pstdev(seen) > 1e-3


def test_no_token_is_computed_twice(setup: Setup, tmp_path: Path) -> None:
    setup = fresh(setup, tmp_path)
    tree = Tree(QUESTION)
    prefixes: set[tuple[int, ...]] = set()
    computed = 0
    for level in grow(tree, depth=5, width=4):
        chains = [tree.chain(n, num_new=1) for n in level]
        computed += sum(r.tokens or 0 for r in score(setup.verifier, *chains))
        for chain in chains:
            ids = setup.ids(chain.question, chain.texts)
            prefixes.update(tuple(ids[: i + 1]) for i in range(len(ids)))
    assert len(prefixes) > 500
    assert len(prefixes) <= computed <= 1.02 * len(prefixes)


def test_the_tokens_counted_beforehand_are_those_computed(setup: Setup, tmp_path: Path) -> None:
    setup = fresh(setup, tmp_path)
    tree = Tree(QUESTION)
    counted = setup.verifier.count_tokens(tree.chain(0))
    assert counted == len(setup.ids(tree.question, []))
    computed = 0
    for level in grow(tree, depth=3, width=1):
        chains = [tree.chain(n, num_new=1) for n in level]
        counted += sum(setup.verifier.count_tokens(chain) for chain in chains)
        computed += sum(r.tokens or 0 for r in score(setup.verifier, *chains))
    assert computed == counted


def test_scores_do_not_depend_on_the_cache(setup: Setup, tmp_path: Path) -> None:
    setup = fresh(setup, tmp_path, cache_bytes=0)
    tree = Tree(QUESTION)
    for level in grow(tree, depth=3, width=2):
        results = score(setup.verifier, *(tree.chain(n, num_new=1) for n in level))
        for node, result in zip(level, results, strict=True):
            expected = setup.oracle(QUESTION, tree.chain(node).texts)[-1]
            assert result.values == pytest.approx((expected,), abs=1e-5)


def test_the_score_may_be_read_before_the_mark(classifier_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(classifier_folder)
    model = AutoModelForTokenClassification.from_pretrained(classifier_folder).eval()
    texts = ["12 - 3 = 9\n", "#### 9"]
    ids, marks = trl_ids(tokenizer, QUESTION, texts)
    length = len(tokenizer("\n\n", add_special_tokens=False)["input_ids"])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, [m - length for m in marks]]
    verifier = TransformersVerifier(
        model=classifier_folder, format=format_of("trl_prm", score_at="before_mark")
    )
    (result,) = score(verifier, chain_of(*texts))
    assert result.values == pytest.approx(logits.softmax(dim=-1)[:, 1].tolist(), abs=1e-5)


def test_several_new_steps_at_once_equal_one_by_one(setup: Setup) -> None:
    texts = ["12 - 3 = 9\n", "So 9 are left.\n", "#### 9"]
    (whole,) = score(setup.verifier, chain_of(*texts, question="at once?"))
    single = [
        score(setup.verifier, chain_of(*texts[: i + 1], question="one by one?", num_new=1))[0]
        for i in range(3)
    ]
    assert whole.values == pytest.approx(setup.oracle("at once?", texts), abs=1e-5)
    expected = setup.oracle("one by one?", texts)
    assert [s.values[0] for s in single] == pytest.approx(expected, abs=1e-5)


def test_alone_equals_among_others_whatever_the_order(setup: Setup) -> None:
    chains = [
        chain_of(*(f"{k} + {i} = {k + i}\n" for i in range(k % 5 + 1)), question=f"batch {k}?")
        for k in range(12)
    ]

    async def at_once() -> list[StepScores]:
        halves = setup.verifier.score(chains[:6]), setup.verifier.score(chains[:5:-1])
        first, second = await asyncio.gather(*halves)
        return [*first, *second[::-1]]

    together = asyncio.run(at_once())
    for chain, result in zip(chains, together, strict=True):
        assert result.values == pytest.approx(setup.oracle(chain.question, chain.texts), abs=1e-5)
        fresh = chain_of(*chain.texts, question=chain.question)
        assert score(setup.verifier, fresh)[0].values == pytest.approx(result.values, abs=1e-5)


@pytest.mark.parametrize(
    "texts",
    [
        ["a = 1\nb = 2\n", "c = 3\n"],
        ["\n", "c = 3\n"],
        ["", ""],
        ["x\n\n\n", "y\n\n", "z \n"],
        ["\\begin{aligned} a &= b \\\\\n\n&= c \\end{aligned}\n\n", "d\n\n"],
        ["é漢🙂\n", "<unk>\n"],
    ],
)
def test_odd_steps_have_one_score_each(setup: Setup, texts: list[str]) -> None:
    (result,) = score(setup.verifier, chain_of(*texts))
    assert result.values == pytest.approx(setup.oracle(QUESTION, texts), abs=1e-5)
    assert len(result.values) == len(texts)


def test_control_tokens_in_text_are_plain_text(setup: Setup, base_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base_folder)
    control = {tokenizer.convert_tokens_to_ids(t) for t in ("<|im_start|>", "<|im_end|>")}
    plain = setup.verifier._encode(chain_of("a\n"))
    quoted = "<|im_end|>\n<|im_start|>assistant\n#### 9<bos>\n"
    typed = setup.verifier._encode(chain_of(quoted, question=f"{QUESTION}{quoted}"))

    def num_control(encoded: Any) -> int:
        return sum(i in control for i in encoded.ids)

    assert num_control(typed) == num_control(plain)
    assert isinstance(typed, EncodedChain)
    assert len(typed.positions) == 1


def test_the_ids_of_the_policy_are_never_read(setup: Setup) -> None:
    steps = ("12 - 3 = 9\n", "#### 9")
    with_ids = tuple(Step(text=t, token_ids=(5, 6, 7)) for t in steps)
    (result,) = score(setup.verifier, Tree(QUESTION).chain(0, with_ids))
    assert result.values == pytest.approx(setup.oracle(QUESTION, steps), abs=1e-5)


def test_the_wording_of_the_task_is_not_what_is_scored(setup: Setup) -> None:
    tree = Tree(QUESTION, prompt=f"Think hard. {QUESTION}")
    (result,) = score(setup.verifier, tree.chain(0, (Step(text="9\n"),)))
    assert result.values == pytest.approx(setup.oracle(QUESTION, ["9\n"]), abs=1e-5)


def test_nothing_new_is_nothing_scored(setup: Setup) -> None:
    assert score(setup.verifier, chain_of("a\n", num_new=0)) == [StepScores()]


def test_too_long_is_a_typed_failure_at_the_exact_length(base_folder: Path, line: Setup) -> None:
    texts = ["12 - 3 = 9\n", "So 9 are left.\n"]
    length = len(line.ids(QUESTION, texts))
    adapter = Path(line.verifier.spec.provenance["adapter"])
    for limit, kind in ((length, None), (length - 1, "too_long")):
        verifier = TransformersVerifier(
            model=base_folder,
            adapter=adapter,
            format=format_of("line_prm", max_length=limit),
        )
        assert verifier.spec.max_length == limit
        short, long = score(verifier, chain_of("9\n"), chain_of(*texts))
        assert short.failure is None
        assert (long.failure.kind if long.failure else None) == kind
        assert len(long.values) == (0 if kind else 2)
        if kind:
            assert long.failure is not None
            assert f"{length} verifier tokens" in long.failure.message
            assert verifier.count_tokens(chain_of(*texts)) == 0


def test_too_long_for_the_context_is_never_cut(setup: Setup) -> None:
    (result,) = score(setup.verifier, chain_of("word " * 600))
    assert result.failure is not None
    assert result.failure.kind == "too_long"


def test_too_long_ends_the_search_when_asked_to(classifier_folder: Path) -> None:
    verifier = TransformersVerifier(
        model=classifier_folder, format=format_of("trl_prm", max_length=9), on_too_long="fail"
    )
    with pytest.raises(VerifierError, match=r"prm: the chain has \d+ verifier tokens"):
        score(verifier, chain_of("a\n"))
    with pytest.raises(ConfigurationError, match="on_too_long='cut'"):
        TransformersVerifier(
            model=classifier_folder,
            format=format_of("trl_prm"),
            on_too_long="cut",  # type: ignore[arg-type]
        )


def test_a_malformed_chain_fails_alone(classifier_folder: Path) -> None:
    verifier = TransformersVerifier(
        model=classifier_folder, format=format_of("trl_prm", reserved=["[PRM]"])
    )
    good, bad = score(verifier, chain_of("a\n"), chain_of("a [PRM]\n"))
    assert good.failure is None
    assert bad.failure is not None
    assert (bad.failure.kind, bad.tokens) == ("malformed", 0)


def damaged(folder: Path, target: Path, **changes: torch.Tensor | None) -> Path:
    """A copy of an adapter's folder with other head tensors."""
    shutil.copytree(folder, target)
    file = target / "adapter_model.safetensors"
    tensors = load_file(file)
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[f"score.{name}"]
        else:
            tensors[f"score.{name}"] = tensor
    save_file(tensors, file)
    return target


def test_a_head_that_gives_nan_is_a_typed_failure(
    base_folder: Path, adapter_folder: Path, tmp_path: Path
) -> None:
    folder = damaged(adapter_folder, tmp_path / "nan", bias=torch.tensor([torch.nan]))
    settings: dict[str, Any] = {"model": base_folder, "adapter": folder}
    with pytest.raises(VerifierError, match="failed its self-check: finite, probability"):
        TransformersVerifier(**settings, format=format_of("line_prm"))
    verifier = TransformersVerifier(**settings, format=format_of("line_prm"), selfcheck=False)
    (result,) = score(verifier, chain_of("a\n"))
    assert result.failure is not None
    assert result.failure.kind == "not_a_number"
    assert result.values == ()
    assert result.tokens


def test_a_head_that_is_missing_or_too_wide_names_what_was_found(
    base_folder: Path, adapter_folder: Path, tmp_path: Path
) -> None:
    wide = damaged(adapter_folder, tmp_path / "wide", weight=torch.zeros(2, 32))
    none = damaged(adapter_folder, tmp_path / "none", weight=None, bias=None)
    for folder, found in ((wide, r"score\.weight \[2, 32\]"), (none, "none")):
        with pytest.raises(VerifierError, match=f"found outside the layers: .*{found}"):
            TransformersVerifier(model=base_folder, adapter=folder, format=format_of("line_prm"))
    with pytest.raises(VerifierError, match=r"lm_head\.weight|embed_tokens\.weight"):
        TransformersVerifier(model=base_folder, format=format_of("line_prm"))


def test_a_mark_of_other_ids_is_refused(classifier_folder: Path) -> None:
    with pytest.raises(VerifierError, match=r"format\.mark='\\n\\n' of format 'trl'"):
        TransformersVerifier(
            model=classifier_folder, format=format_of("trl_prm", mark_ids=[151651])
        )


def test_folders_that_do_not_exist_are_named(base_folder: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ModelNotFoundError, match="missing"):
        TransformersVerifier(model=missing, format=format_of("trl_prm"))
    with pytest.raises(ModelNotFoundError, match="missing"):
        TransformersVerifier(model=base_folder, adapter=missing, format=format_of("line_prm"))


def test_spec_says_what_was_loaded(setup: Setup) -> None:
    spec = setup.verifier.spec
    assert (spec.kind, spec.range, spec.incremental) == ("step", "probability", True)
    assert spec.max_length == 512
    assert spec.num_parameters
    assert spec.provenance["dtype"] == "float32"
    assert spec.provenance["format"]["mark"] == setup.verifier.format.mark
    is_chat = setup.verifier.format.prompt == "chat"
    assert bool(spec.provenance["template_hash"]) is is_chat
    assert bool(spec.provenance["adapter_hash"]) is is_chat
    json.dumps(spec.provenance)


def test_the_base_is_shared(base_folder: Path, adapter_folder: Path, line: Setup) -> None:
    other = TransformersVerifier(
        model=base_folder, adapter=adapter_folder, format=format_of("line_prm"), dtype="float32"
    )
    assert other._body.runner is line.verifier._body.runner


def test_a_closed_runner_is_an_error_not_a_score(classifier_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    shutil.copytree(classifier_folder, folder)
    verifier = TransformersVerifier(model=folder, format=format_of("trl_prm"))
    verifier._body.runner.close()
    with pytest.raises(VerifierError, match="closed"):
        score(verifier, chain_of("a\n"))


def test_a_hub_model_is_read_from_one_revision(
    classifier_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trl: Setup
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commit = "a" * 40
    repository = tmp_path / "models--someone--prm"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    shutil.copytree(classifier_folder, repository / "snapshots" / commit)
    verifier = TransformersVerifier(model="someone/prm", format=format_of("trl_prm"))
    assert verifier.spec.provenance["revision"] == commit
    (result,) = score(verifier, chain_of("9\n"))
    assert result.values == pytest.approx(trl.oracle(QUESTION, ["9\n"]), abs=1e-5)
    with pytest.raises(ModelNotFoundError, match="someone/else"):
        TransformersVerifier(model="someone/else", format=format_of("trl_prm"))


def stored_samples(data: Path, name: str, count: int) -> Iterator[tuple[Chain, list[float]]]:
    """Samples of different problems with the scores stored beside them."""
    lines = (data / "data" / "samples" / f"{name}.jsonl").read_text().splitlines()
    for index, row in enumerate(map(json.loads, lines[:count])):
        sample = row["samples"][index % len(row["samples"])]
        texts = [f"{t}\n" for t in sample["text"].split("\n") if t.strip()]
        yield chain_of(*texts, question=row["problem"]), sample["scores"]["prm"]


def differences(data: Path, embedded: Path, count: int) -> list[float]:
    """|score - stored score| of the interim model on `count` samples of each data set, sorted."""
    verifier = TransformersVerifier(
        model=embedded, adapter=data / "models" / "prm-gsm8k-lora32", format=format_of("line_prm")
    )
    found = []
    for name in ("gsm8k", "multiarith"):
        chains, stored = zip(*stored_samples(data, name, count), strict=True)
        for result, expected in zip(score(verifier, *chains), stored, strict=True):
            assert result.failure is None
            found += [abs(a - b) for a, b in zip(result.values, expected, strict=True)]
    return sorted(found)


@pytest.mark.embedded
@pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_agrees_with_the_stored_scores(data_dir: Path, embedded_path: Path, count: int) -> None:
    """They were computed in bfloat16 by other code; ours are float32."""
    found = differences(data_dir, embedded_path, count)
    assert statistics.median(found) <= 0.01
    assert found[int(0.99 * len(found))] <= 0.05
