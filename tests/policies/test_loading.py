"""Finding models, sharing runners, loading adapters."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from support.tiny import save_tiny, tiny_model
from transformers import AutoModel

from stepsearch.policies.loading import (
    find_model,
    load_tokenizer,
    model_hash,
    pick_device,
    pick_dtype,
    shared_runner,
)
from stepsearch.policies.sampling import Draw, Token
from stepsearch.search.errors import ConfigurationError, ModelNotFoundError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "model")


def save_adapter(
    folder: Path,
    kind: str = "llama",
    seed: int = 1,
    rank: int = 4,
    targets: Sequence[str] = ("q_proj", "down_proj"),
) -> Any:
    """A LoRA adapter with random weights; returns the peft model as the reference."""
    config = LoraConfig(r=rank, target_modules=list(targets), task_type="CAUSAL_LM")
    model: Any = get_peft_model(tiny_model(kind), config).eval()
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    for name in (str(tmp_path / "gone"), "./gone", "~/gone/away", "gone"):
        with pytest.raises(ModelNotFoundError, match="gone") as error:
            find_model(name)
        assert "Give the folder" in str(error.value)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        shared_runner(tmp_path, device="cpu")
    with pytest.raises(ModelNotFoundError, match="tokenizer"):
        load_tokenizer(tmp_path)


def test_a_hub_name_without_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError, match="hf download nobody/nothing"):
        shared_runner("nobody/nothing", device="cpu")


def test_settings_are_checked(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="dtype"):
        pick_dtype("float99", torch.device("cpu"))
    with pytest.raises(ConfigurationError, match="dtype"):
        pick_dtype("int8", torch.device("cpu"))
    with pytest.raises(ConfigurationError, match="device"):
        pick_device("abacus")
    with pytest.raises(ConfigurationError, match="max_rows"):
        shared_runner(folder, device="cpu", max_rows=0)
    with pytest.raises(ConfigurationError, match="cache_bytes"):
        shared_runner(folder, device="cpu", cache_bytes=-1)


def test_one_base_is_one_runner_with_the_larger_limits(folder: Path) -> None:
    first = shared_runner(folder, device="cpu", cache_bytes=1000)
    second = shared_runner(str(folder), device="auto", cache_bytes=5000, max_rows=3)
    if torch.cuda.is_available():
        assert second is not first
    else:
        assert second is first
        assert first.cache_limit == 5000
    assert shared_runner(folder, device="cpu", dtype="bfloat16") is not first
    fixed = shared_runner(folder, device="cpu", fixed_shapes=True)
    assert fixed is not first
    assert shared_runner(folder, device="cpu", fixed_shapes=True, max_rows=4) is not fixed
    first.close()
    assert shared_runner(folder, device="cpu") is not first


def test_adapters_equal_peft_and_share_the_base(folder: Path, tmp_path: Path) -> None:
    references = [save_adapter(tmp_path / f"adapter{i}", seed=i) for i in range(2)]
    runner = shared_runner(folder, device="cpu")
    storage = runner.model._model.get_input_embeddings().weight.data_ptr()
    weights = {p.data_ptr() for n, p in runner.model._model.named_parameters() if "lora_" not in n}
    names = [runner.load_adapter(tmp_path / f"adapter{i}") for i in range(2)]
    assert runner.load_adapter(tmp_path / "adapter0") == names[0]
    after = {p.data_ptr() for n, p in runner.model._model.named_parameters() if "lora_" not in n}
    assert after == weights
    assert storage in after
    ids = [5, 9, 200, 31, 77]

    async def main() -> list[torch.Tensor]:
        jobs = [runner.encode(ids, [4], a) for a in (names[0], None, names[1], names[0])]
        return [e.hidden[0] for e in await asyncio.gather(*jobs)]

    first, base, second, again = asyncio.run(main())
    with torch.no_grad():
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, 5).long()}
        expected = [r.base_model.model.model(**inputs).last_hidden_state[0, 4] for r in references]
        plain = tiny_model("llama").model(**inputs).last_hidden_state[0, 4]
    torch.testing.assert_close(first, expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(second, expected[1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(base, plain, atol=1e-5, rtol=1e-5)
    assert torch.equal(first, again)
    assert float((first - second).abs().max()) > 1e-3
    assert float((first - base).abs().max()) > 1e-3


def test_a_head_beside_the_adapter_is_left_to_the_verifier(folder: Path, tmp_path: Path) -> None:
    save_adapter(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file(load_file(file) | {"score.weight": torch.zeros(1, 32)}, file)
    runner = shared_runner(folder, device="cpu")
    assert runner.load_adapter(tmp_path / "adapter")


def test_adapters_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    runner = shared_runner(folder, device="cpu")
    with pytest.raises(ModelNotFoundError, match="adapter_config"):
        runner.load_adapter(tmp_path)
    adapter = tmp_path / "adapter"
    file = adapter / "adapter_model.safetensors"
    save_adapter(adapter)
    whole = load_file(file)
    save_file({k: v for k, v in whole.items() if "layers.1" not in k}, file)
    with pytest.raises(ConfigurationError, match="does not fit"):
        runner.load_adapter(adapter)
    save_file(whole | {"base_model.model.lm_head.weight": torch.zeros(1)}, file)
    with pytest.raises(ConfigurationError, match=r"lm_head\.weight"):
        runner.load_adapter(adapter)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"peft_type": "IA3"}))
    with pytest.raises(ConfigurationError, match="IA3"):
        runner.load_adapter(adapter)


def test_a_refused_adapter_leaves_base_and_others_as_they_were(
    folder: Path, tmp_path: Path
) -> None:
    runner = shared_runner(folder, device="cpu", cache_bytes=0)
    save_adapter(tmp_path / "good")
    save_adapter(tmp_path / "bad", seed=2, targets=("q_proj", "v_proj"))
    file = tmp_path / "bad" / "adapter_model.safetensors"
    whole = load_file(file)
    save_file({name: whole[name] for name in sorted(whole)[1:]}, file)
    good = runner.load_adapter(tmp_path / "good")

    async def states() -> torch.Tensor:
        jobs = [runner.encode([5, 9, 200], [2], name) for name in (None, good)]
        return torch.cat([e.hidden for e in await asyncio.gather(*jobs)])

    before = asyncio.run(states())
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="does not fit"):
            runner.load_adapter(tmp_path / "bad")
        torch.testing.assert_close(asyncio.run(states()), before)
    save_file(whole, file)
    assert runner.load_adapter(tmp_path / "bad") != good
    torch.testing.assert_close(asyncio.run(states()), before)


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
def test_an_adapter_of_the_head_changes_no_other_logits(folder: Path, tmp_path: Path) -> None:
    runner = shared_runner(folder, device="cpu")
    reference = save_adapter(tmp_path / "head", targets=("lm_head",))
    name = runner.load_adapter(tmp_path / "head")
    ids, length = [5, 9, 200, 31], 8

    async def write(adapter: str | None) -> list[int]:
        tokens: list[int] = []

        def on_token(token: Token) -> bool:
            tokens.append(token.id)
            return len(tokens) < length

        await runner.generate(ids, Draw(seed=0, temperature=0.0), on_token, adapter)
        return tokens

    async def both() -> list[list[int]]:
        return await asyncio.gather(write(None), write(name), write(None))

    def expected(model: Any) -> list[int]:
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, 4).long()}
        written = model.generate(
            **inputs, max_new_tokens=length, do_sample=False, eos_token_id=None
        )
        return [int(i) for i in written[0, 4:]]

    plain, adapted = expected(tiny_model("llama")), expected(reference)
    assert plain != adapted
    for _ in range(2):
        assert asyncio.run(both()) == [plain, adapted, plain]


def test_an_adapter_of_another_base_is_refused(folder: Path, tmp_path: Path) -> None:
    save_adapter(tmp_path / "adapter")
    note = tmp_path / "adapter" / "base.json"
    note.write_text(json.dumps({"base_sha256": "0" * 64}))
    runner = shared_runner(folder, device="cpu")
    with pytest.raises(ConfigurationError, match="belongs to a base"):
        runner.load_adapter(tmp_path / "adapter")
    note.write_text(json.dumps({"base_sha256": model_hash(folder)}))
    assert runner.load_adapter(tmp_path / "adapter")


def test_hashes_tell_models_apart(tmp_path: Path) -> None:
    first, twin = save_tiny(tmp_path / "a"), save_tiny(tmp_path / "b")
    other = save_tiny(tmp_path / "c", seed=1)
    assert model_hash(first) == model_hash(twin) != model_hash(other)
    (first / "manifest.json").write_text(json.dumps({"base_sha256": "known"}))
    assert model_hash(first) == "known"


def test_a_body_without_head_encodes_but_does_not_sample(tmp_path: Path) -> None:
    model = tiny_model("llama")
    build: Any = AutoModel
    body = build.from_config(model.config)
    body.load_state_dict(model.model.state_dict())
    body.save_pretrained(tmp_path)
    runner = shared_runner(tmp_path, device="cpu")
    encoded = asyncio.run(runner.encode([5, 6, 7], [2]))
    with torch.no_grad():
        expected = model.model(torch.tensor([[5, 6, 7]]), attention_mask=torch.ones(1, 3).long())
    torch.testing.assert_close(
        encoded.hidden[0], expected.last_hidden_state[0, 2], atol=1e-5, rtol=1e-5
    )
    with pytest.raises(ConfigurationError, match="no language-model head"):
        runner.model.require_head()


def test_weights_that_are_missing_are_never_random(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelNotFoundError, match=r"lacks 1 weights .*layers\.1\.mlp\.up_proj"):
        shared_runner(folder, device="cpu")
