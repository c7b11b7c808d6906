"""The runner: equal to plain transformers, every distinct token once, isolation, cancellation."""

import asyncio
import gc
import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from support.tiny import CONTEXT, KINDS, VOCAB, tiny_model
from transformers import MistralConfig, MistralForCausalLM

from stepsearch.policies.causal import CausalRunner, Generated
from stepsearch.policies.kv_pool import KvPool
from stepsearch.policies.model import CausalModel
from stepsearch.policies.prefill import PassLimits
from stepsearch.policies.reading import Encoded
from stepsearch.policies.sampling import Draw, Token
from stepsearch.search.errors import ConfigurationError, PolicyError

EPSILON = 1e-3
"""Two runs of one seed may only part at a token whose gap is below it, in float32."""


def ids_of(seed: int, length: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, VOCAB, (length,), generator=generator).tolist())


def reference(model: Any, ids: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        mask = torch.ones(1, len(ids), dtype=torch.long)
        out = model.base_model(input_ids=torch.tensor([list(ids)]), attention_mask=mask)
    return torch.as_tensor(out.last_hidden_state[0])


@pytest.fixture(params=[False, True], ids=["", "fixed"])
def fixed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def runner(fixed: bool) -> Iterator[CausalRunner]:
    made = CausalRunner(CausalModel(tiny_model("llama"), "tiny"), max_rows=8, fixed_shapes=fixed)
    yield made
    made.close()


async def generate(
    runner: CausalRunner, ids: Sequence[int], draw: Draw, length: int
) -> tuple[list[Token], Generated]:
    tokens: list[Token] = []

    def on_token(token: Token) -> bool:
        tokens.append(token)
        return len(tokens) < length

    return tokens, await runner.generate(ids, draw, on_token)


def check_promise(first: Sequence[Token], second: Sequence[Token]) -> None:
    """Equal, or parted at a near tie."""
    for a, b in zip(first, second, strict=True):
        if a.id != b.id:
            print(f"parted at a gap of {a.gap:.2e}")
            assert min(a.gap, b.gap) < EPSILON
            return
        assert a.logprob == pytest.approx(b.logprob, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_equal_transformers_and_tokens_are_computed_once(kind: str) -> None:
    plain = tiny_model(kind)
    runner = CausalRunner(CausalModel(tiny_model(kind), kind))
    trunk = ids_of(1, 40)
    chains = [trunk + ids_of(n, n) for n in (1, 2, 7, 30)] + [ids_of(5, 60)] * 2
    chains += [chains[0] + ids_of(9, 5)]

    async def main() -> list[Encoded]:
        first = await asyncio.gather(*[runner.encode(c, [3, len(c) - 1]) for c in chains])
        again = await asyncio.gather(*[runner.encode(c, [3, len(c) - 1]) for c in chains])
        assert [e.computed for e in again] == [0] * len(chains)
        return [*first, *again]

    encoded = asyncio.run(main())
    for chain, result in zip(chains * 2, encoded, strict=True):
        expected = reference(plain, chain)[[3, len(chain) - 1]]
        assert result.hidden.dtype == torch.float32
        torch.testing.assert_close(result.hidden, expected, atol=1e-5, rtol=1e-5)
        assert result.computed + result.reused == len(chain)
    distinct = {chain[:n] for chain in chains for n in range(1, len(chain) + 1)}
    assert sum(e.computed for e in encoded) == len(distinct)
    runner.close()


def test_readers_see_all_that_became_ready_in_one_pass(runner: CausalRunner) -> None:
    bad = 17
    runner.model._model.get_input_embeddings().weight.data[bad] = float("nan")
    trunk = tuple(i for i in ids_of(1, 40) if i != bad)
    chains = [trunk + tuple(i for i in ids_of(n, n + 1) if i != bad) for n in range(6)]
    asked: list[int] = []

    def total(states: torch.Tensor) -> torch.Tensor:
        asked.append(len(states))
        return states.sum(-1)

    async def main() -> None:
        places = [[3, len(chain) - 1] for chain in chains]
        wanted = [*zip(chains, places, strict=True), ((*trunk, bad), [3, len(trunk)])]
        with runner._worker.condition:  # so that all of them wait before the first pass
            tasks = [asyncio.ensure_future(runner.read(c, p, total)) for c, p in wanted]
            await asyncio.sleep(0)
        *readings, poisoned = await asyncio.gather(*tasks)
        for chain, place, reading in zip(chains, places, readings, strict=True):
            encoded = await runner.encode(chain, place)
            assert reading.values == pytest.approx(encoded.hidden.sum(-1).tolist(), abs=1e-4)
            assert reading.computed + reading.reused == len(chain)
        assert math.isfinite(poisoned.values[0])
        assert math.isnan(poisoned.values[1])

    asyncio.run(main())
    assert sum(asked) == 2 * (len(chains) + 1)
    # With fixed shapes what else is ready must not change a bit.
    assert len(asked) == len(chains) + 1 if runner.fixed_shapes else len(asked) <= 2


def test_a_reader_that_raises_is_told_and_the_runner_goes_on(runner: CausalRunner) -> None:
    def broken(_: torch.Tensor) -> torch.Tensor:
        raise LookupError("reader")

    async def main() -> None:
        with pytest.raises(PolicyError, match="reader"):
            await runner.read([5, 6, 7], [2], broken)
        reading = await runner.read([5, 6, 7], [2], lambda states: states[:, 0])
        assert math.isfinite(reading.values[0])

    asyncio.run(main())


@pytest.mark.parametrize(
    "limits",
    [
        PassLimits(tokens=10**6, num_bytes=1),
        PassLimits(tokens=10**6, num_bytes=10**9, padding=1.0),
        PassLimits(tokens=10**6, num_bytes=80_000, padding=0.5),
    ],
)
def test_limits_of_a_pass_change_no_result(runner: CausalRunner, limits: PassLimits) -> None:
    runner._prefiller.limits = limits
    plain = tiny_model("llama")
    chains = [ids_of(n, 3 + 4 * n) for n in range(8)]

    async def main() -> list[Encoded]:
        return await asyncio.gather(*[runner.encode(c, [len(c) - 1]) for c in chains])

    for chain, result in zip(chains, asyncio.run(main()), strict=True):
        expected = reference(plain, chain)[[len(chain) - 1]]
        torch.testing.assert_close(result.hidden, expected, atol=1e-5, rtol=1e-5)
    if not runner.fixed_shapes and limits.num_bytes > 1:
        buffers = runner._prefiller._buffers
        held = buffers.keys.nbytes + buffers.values.nbytes + buffers.hidden.nbytes
        assert held <= limits.num_bytes


@pytest.mark.parametrize("cache_bytes", [0, 60_000])
def test_a_small_cache_makes_nothing_that_waits_be_computed_again(cache_bytes: int) -> None:
    runner = CausalRunner(CausalModel(tiny_model("llama"), "tiny"), cache_bytes=cache_bytes)
    trunk = ids_of(1, 30)
    chains = [trunk + ids_of(n, 40) for n in range(40)]

    async def main() -> list[Encoded]:
        with runner._worker.condition:  # so that all of them wait before the first pass
            tasks = [asyncio.ensure_future(runner.encode(c, [len(c) - 1])) for c in chains]
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks)

    encoded = asyncio.run(main())
    distinct = {chain[:n] for chain in chains for n in range(1, len(chain) + 1)}
    assert sum(e.computed for e in encoded) == len(distinct)
    assert all(e.computed + e.reused == 70 for e in encoded)
    assert runner.cache_bytes <= cache_bytes
    runner.close()


def test_passes_are_larger_where_launching_is_what_takes_time() -> None:
    class Model:
        def __init__(self, device: str, num_parameters: int) -> None:
            self.device, self.num_parameters = torch.device(device), num_parameters

    def tokens(device: str, num_parameters: int) -> int:
        return PassLimits.of(Model(device, num_parameters)).tokens  # type: ignore[arg-type]

    assert tokens("cpu", 135_000_000) == tokens("cuda", 7_000_000_000) == 1024
    assert 1024 < tokens("cuda", 1_500_000_000) < tokens("cuda", 135_000_000) == 8192


def test_long_sequences_are_computed_in_pieces(runner: CausalRunner) -> None:
    runner._prefiller.limits = PassLimits(tokens=16)
    plain = tiny_model("llama")
    chains = [ids_of(n, 50) for n in range(3)]

    async def main() -> list[Encoded]:
        return await asyncio.gather(*[runner.encode(c, [0, 20, 49]) for c in chains])

    for chain, result in zip(chains, asyncio.run(main()), strict=True):
        expected = reference(plain, chain)[[0, 20, 49]]
        torch.testing.assert_close(result.hidden, expected, atol=1e-5, rtol=1e-5)
        assert (result.computed, result.reused) == (50, 0)


def test_greedy_equals_generate_of_transformers(runner: CausalRunner) -> None:
    plain, ids = tiny_model("llama"), ids_of(3, 30)
    with torch.no_grad():
        expected = plain.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, 30, dtype=torch.long),
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=None,
        )[0, 30:]
    tokens, generated = asyncio.run(generate(runner, ids, Draw(seed=0, temperature=0.0), 40))
    assert [t.id for t in tokens] == expected.tolist()
    assert generated == Generated(30, 0)


def test_log_probabilities_are_those_of_the_model(runner: CausalRunner) -> None:
    plain, ids = tiny_model("llama"), ids_of(4, 20)
    draw = Draw(seed=9, temperature=0.6, top_k=50)
    tokens, _ = asyncio.run(generate(runner, ids, draw, 15))
    whole = [*ids, *(t.id for t in tokens)]
    with torch.no_grad():
        logits = plain(torch.tensor([whole]), attention_mask=torch.ones(1, 35).long()).logits[0]
    for i, token in enumerate(tokens):
        expected = float(logits[19 + i].log_softmax(-1)[token.id])
        assert token.logprob == pytest.approx(expected, abs=1e-4)


def test_alone_equals_among_others(runner: CausalRunner, fixed: bool) -> None:
    ids = ids_of(3, 30)

    async def main() -> tuple[list[list[Token]], list[list[Token]]]:
        jobs = [
            (ids if s < 8 else ids_of(s, 3 * s), Draw(seed=s, temperature=1.0)) for s in range(16)
        ]
        together = await asyncio.gather(*[generate(runner, i, d, 10 + d.seed % 5) for i, d in jobs])
        runner._cache.limit_bytes, limit = 0, runner._cache.limit_bytes
        runner._cache.evict()
        runner._cache.limit_bytes = limit
        alone = [await generate(runner, i, d, 10 + d.seed % 5) for i, d in jobs]
        return [t for t, _ in together], [t for t, _ in alone]

    together, alone = asyncio.run(main())
    for first, second in zip(together, alone, strict=True):
        if fixed:
            assert first == second  # to the last bit: ids, log-probabilities and gaps
        else:
            check_promise(first, second)


def test_cut_anywhere_is_the_same_chain(runner: CausalRunner) -> None:
    ids = ids_of(6, 12)

    async def main() -> None:
        whole, _ = await generate(runner, ids, Draw(seed=4, temperature=1.0), 20)
        done: list[Token] = []
        for length in (1, 6, 13):
            start = Draw(seed=4, start=len(done), temperature=1.0)
            before = [*ids, *(t.id for t in done)]
            more, generated = await generate(runner, before, start, length)
            # The last token sampled was never fed; everything before it is there.
            assert generated.computed <= 1
            done += more
        check_promise(whole, done)

    asyncio.run(main())


def test_siblings_share_their_prompt(runner: CausalRunner) -> None:
    async def main() -> list[Generated]:
        made = [generate(runner, ids_of(2, 25), Draw(seed=s), 4) for s in range(12)]
        return [g for _, g in await asyncio.gather(*made)]

    counts = asyncio.run(main())
    assert sum(g.computed for g in counts) == 25
    assert all(g.computed + g.reused == 25 for g in counts)


def test_next_token_of_a_chain_rides_with_running_rows(runner: CausalRunner) -> None:
    """Siblings that ask for one more token at the same time still compute it once."""

    async def main() -> None:
        trunk = ids_of(2, 25)
        await runner.encode(trunk, [24])
        started = asyncio.Event()
        loop = asyncio.get_running_loop()
        seen = 0

        def on_token(_: Token) -> bool:
            nonlocal seen
            seen += 1
            loop.call_soon_threadsafe(started.set)
            return seen < 200

        running = asyncio.create_task(runner.generate(trunk, Draw(seed=1), on_token))
        await started.wait()
        longer = (*trunk, 7)
        results = await asyncio.gather(*[runner.encode(longer, [25]) for _ in range(5)])
        assert sum(r.computed for r in results) == 1
        expected = reference(tiny_model("llama"), longer)[25:]
        torch.testing.assert_close(results[0].hidden, expected, atol=1e-5, rtol=1e-5)
        await running

    asyncio.run(main())


@pytest.mark.parametrize("limit", [0, 20_000])
def test_a_small_cache_is_slower_but_right(limit: int, fixed: bool) -> None:
    runner = CausalRunner(
        CausalModel(tiny_model("llama"), "tiny"), cache_bytes=limit, max_rows=4, fixed_shapes=fixed
    )
    plain = tiny_model("llama")
    chains = [ids_of(n, 30) for n in range(5)]

    async def main() -> list[Encoded]:
        jobs = [generate(runner, c, Draw(seed=1), 5) for c in chains]
        encoded = await asyncio.gather(*[runner.encode(c, [29]) for c in chains])
        await asyncio.gather(*jobs)
        return encoded

    for chain, result in zip(chains, asyncio.run(main()), strict=True):
        torch.testing.assert_close(
            result.hidden, reference(plain, chain)[29:], atol=1e-5, rtol=1e-5
        )
    runner.close()
    assert runner.cache_bytes <= limit
    assert all(node.pins == 0 for node in runner._cache.nodes())


def test_a_device_out_of_memory_ends_what_is_in_flight_and_not_the_thread(
    runner: CausalRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ids_of(5, 12)

    def full(*args: object, **kwargs: object) -> None:
        raise MemoryError("no room for the rows")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("stepsearch.policies.decode.DecodeGroup._join", full)
            results = await asyncio.gather(
                generate(runner, ids, Draw(seed=1), 4),
                generate(runner, ids_of(6, 9), Draw(seed=2), 4),
                return_exceptions=True,
            )
        for result in results:
            assert isinstance(result, PolicyError)
            assert "MemoryError: no room for the rows" in str(result)
        tokens, _ = await generate(runner, ids, Draw(seed=1), 4)
        assert len(tokens) == 4

    asyncio.run(asyncio.wait_for(main(), timeout=60))


def test_a_failure_lets_go_of_what_the_device_holds(runner: CausalRunner) -> None:
    trunk = ids_of(1, 30)

    def broken(_: torch.Tensor) -> torch.Tensor:
        raise LookupError("reader")

    async def main() -> None:
        tasks = [asyncio.ensure_future(runner.generate(trunk, Draw(seed=1), lambda _: True))]
        while not any(group.rows for group in runner._groups.values()):
            await asyncio.sleep(0.001)
        with runner._worker.condition:  # so that a prefix rides with the row when all fail
            tasks.append(asyncio.ensure_future(runner.encode((*trunk, 5), [30])))
            tasks.append(asyncio.ensure_future(runner.read(trunk, [29], broken)))
            await asyncio.sleep(0)
            buffers = (runner._prefiller._buffers, runner._groups[None]._buffers)
            gone = [weakref.ref(x) for x in (runner._pool._keys, *buffers)]
            del buffers
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, PolicyError) for result in results)
        await runner.encode(trunk, [29])
        assert [reference() for reference in gone] == [None] * 3

    gc.collect()
    gc.disable()  # it comes too late when memory is scarce
    try:
        asyncio.run(asyncio.wait_for(main(), timeout=60))
    finally:
        gc.enable()


def test_a_failure_is_told_when_the_device_has_room_for_nothing(
    runner: CausalRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = KvPool._allocate

    def full(pool: KvPool, slots: int) -> Any:
        if slots:
            raise MemoryError("no room for the pool")
        return allocate(pool, slots)

    def broken(_: torch.Tensor) -> torch.Tensor:
        raise LookupError("reader")

    async def main() -> None:
        await runner.encode([5, 6, 7], [2])
        with monkeypatch.context() as patch:
            patch.setattr(KvPool, "_allocate", full)
            with pytest.raises(PolicyError, match="reader"):
                await runner.read([5, 6, 7], [2], broken)
            with pytest.raises(PolicyError, match="no room"):
                await runner.encode([5, 6, 7], [2])
        assert (await runner.encode([5, 6, 7], [2])).computed == 3

    asyncio.run(asyncio.wait_for(main(), timeout=60))


def test_a_forked_child_is_told_what_to_do(
    runner: CausalRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(PolicyError, match="spawn"):
        asyncio.run(runner.encode(ids_of(5, 4), [2]))


def test_a_poisoned_token_fails_alone(runner: CausalRunner) -> None:
    bad = 17
    runner.model._model.get_input_embeddings().weight.data[bad] = float("nan")
    good = tuple(i for i in ids_of(8, 20) if i != bad)

    async def main() -> None:
        results = await asyncio.gather(
            runner.encode(good, [3, len(good) - 1]),
            runner.encode((*good[:5], bad, *good[5:]), [3, 10]),
            generate(runner, good, Draw(seed=1, temperature=0.0), 6),
            generate(runner, (*good, bad), Draw(seed=1), 6),
            return_exceptions=True,
        )
        fine, poisoned, tokens, failed = results
        assert isinstance(fine, Encoded)
        assert isinstance(poisoned, Encoded)
        assert torch.isfinite(fine.hidden).all()
        assert torch.isfinite(poisoned.hidden[0]).all()
        assert poisoned.hidden[1].isnan().all()
        assert not isinstance(tokens, BaseException)
        assert isinstance(failed, PolicyError)
        assert "finite" in str(failed)
        after, _ = await generate(runner, good, Draw(seed=1, temperature=0.0), 6)
        assert [t.id for t in after] == [t.id for t in tokens[0]]

    asyncio.run(main())


def test_states_before_a_bad_token_are_kept(runner: CausalRunner) -> None:
    bad = 17
    before, behind = ((i for i in ids_of(n, 12) if i != bad) for n in (1, 2))
    start = tuple(before)
    chain = (*start, bad, *behind)
    plain = reference(tiny_model("llama"), start)
    runner.model._model.get_input_embeddings().weight.data[bad] = float("nan")
    places = [*range(len(start)), len(start), len(chain) - 1]
    for encoded in (asyncio.run(runner.encode(chain, places)) for _ in range(2)):  # then cached
        torch.testing.assert_close(encoded.hidden[: len(start)], plain, atol=1e-5, rtol=1e-5)
        assert encoded.hidden[len(start) :].isnan().all()


def test_a_poisoned_prefix_that_was_moved_spoils_no_later_row() -> None:
    bad = 17
    runner = CausalRunner(CausalModel(tiny_model("llama"), "tiny"), max_rows=4, fixed_shapes=True)
    runner.model._model.get_input_embeddings().weight.data[bad] = float("nan")
    good = tuple(i for i in ids_of(5, 6) if i != bad)

    async def main() -> None:
        await runner.encode(good, [len(good) - 1])
        with runner._worker.condition:
            first = asyncio.ensure_future(generate(runner, good, Draw(seed=1), 12))
            await asyncio.sleep(0)
        while not any(group.rows for group in runner._groups.values()):
            await asyncio.sleep(0)
        poisoned = asyncio.ensure_future(runner.encode((5, bad, *ids_of(8, 200)), [0, 60]))
        await first  # the poisoned one takes its row
        for seed in range(4):
            tokens, _ = await generate(runner, good, Draw(seed=seed, temperature=0.0), 3)
            assert len(tokens) == 3
        assert (await poisoned).hidden[1].isnan().all()

    asyncio.run(main())
    runner.close()


def test_a_listener_that_raises_fails_alone(runner: CausalRunner) -> None:
    def broken(_: Token) -> bool:
        raise LookupError("listener")

    async def main() -> None:
        results = await asyncio.gather(
            runner.generate(ids_of(1, 5), Draw(seed=1), broken),
            generate(runner, ids_of(1, 5), Draw(seed=1), 9),
            return_exceptions=True,
        )
        assert isinstance(results[0], LookupError)
        assert len(results[1][0]) == 9  # type: ignore[index]

    asyncio.run(main())


def test_wrong_requests_are_refused(runner: CausalRunner) -> None:
    async def main() -> None:
        for positions in ([], [2, 1], [1, 1], [-1], [3]):
            with pytest.raises(ValueError, match="positions"):
                await runner.encode([5, 6, 7], positions)
        for ids in ([5, VOCAB], [-1, 2]):
            with pytest.raises(ValueError, match="ids"):
                await runner.encode(ids, [1])
        with pytest.raises(ValueError, match="do not fit"):
            await runner.encode([5] * (CONTEXT + 1), [CONTEXT])
        with pytest.raises(ConfigurationError, match="not loaded"):
            await runner.encode([5], [0], "nobody")
        assert (await runner.encode([5], [0])).computed == 1

    asyncio.run(main())


def test_a_cancelled_row_leaves(runner: CausalRunner) -> None:
    async def main() -> None:
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_token(_: Token) -> bool:
            loop.call_soon_threadsafe(started.set)
            return True

        task = asyncio.create_task(runner.generate(ids_of(1, 5), Draw(seed=1), on_token))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        tokens, _ = await generate(runner, ids_of(1, 5), Draw(seed=2), 5)
        assert len(tokens) == 5
        while runner.has_work():
            await asyncio.sleep(0.001)

    asyncio.run(main())
    assert all(node.pins == 0 for node in runner._cache.nodes())


def test_several_event_loops_share_a_runner(runner: CausalRunner) -> None:
    results: dict[int, list[Token]] = {}

    def work(seed: int) -> None:
        results[seed] = asyncio.run(generate(runner, ids_of(1, 9), Draw(seed=seed), 12))[0]

    threads = [threading.Thread(target=work, args=(s,)) for s in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, tokens in results.items():
        check_promise(tokens, asyncio.run(generate(runner, ids_of(1, 9), Draw(seed=seed), 12))[0])


def device_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "stepsearch"]


def test_closing_fails_what_is_in_flight_and_joins_the_thread(runner: CausalRunner) -> None:
    async def main() -> None:
        task = asyncio.create_task(runner.generate(ids_of(1, 5), Draw(seed=1), lambda _: True))
        await asyncio.sleep(0.01)
        runner.close()
        with pytest.raises(PolicyError, match="closed"):
            await task
        with pytest.raises(PolicyError, match="closed"):
            await runner.encode([5], [0])

    gc.collect()
    others = len(device_threads()) - 1
    asyncio.run(main())
    runner.close()
    gc.collect()
    assert len(device_threads()) <= max(others, 0) + 1


def test_an_unused_runner_disappears() -> None:
    runner = CausalRunner(CausalModel(tiny_model("llama"), "tiny"))
    asyncio.run(generate(runner, ids_of(1, 5), Draw(seed=1), 5))
    gone = weakref.ref(runner)
    del runner
    for _ in range(1000):
        gc.collect()
        if gone() is None:
            break
    assert gone() is None


def test_layers_that_are_not_plain_full_attention_are_refused() -> None:
    config = MistralConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, sliding_window=8,
    )  # fmt: skip
    build: Any = MistralForCausalLM
    with pytest.raises(ConfigurationError, match="plain full attention"):
        CausalModel(build(config), "sliding")
    config.sliding_window = 64
    CausalModel(build(config), "wide")


def test_a_model_that_ignores_masks_is_refused() -> None:
    model = tiny_model("llama")
    forward = model.model.forward

    def without_mask(*args: Any, **kwargs: Any) -> Any:
        mask = kwargs.get("attention_mask")
        if mask is not None and mask.ndim == 4:
            kwargs["attention_mask"] = torch.zeros_like(mask)
        return forward(*args, **kwargs)

    model.model.forward = without_mask
    with pytest.raises(ConfigurationError, match="explicit masks"):
        CausalModel(model, "deaf")
