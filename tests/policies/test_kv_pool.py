"""Slots of tokens: what is stored is read back, whoever else takes and returns slots."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsearch.policies.kv_pool import KvPool, Segment, slots_of
from stepsearch.policies.kv_slots import Shapes, SlotBuffers
from stepsearch.policies.prefix_cache import Part

SHAPES = Shapes(num_layers=2, num_heads=3, key_size=4, value_size=5, hidden_size=6)
CPU = torch.device("cpu")


def make_pool(limit_bytes: int = 0) -> KvPool:
    return KvPool(SHAPES, torch.float32, CPU, limit_bytes)


def filled(rows: int, columns: int) -> SlotBuffers:
    buffers = SlotBuffers(SHAPES, torch.float32, CPU)
    buffers.lay_out(rows, columns)
    for tensor in (buffers.keys, buffers.values, buffers.hidden):
        tensor.copy_(torch.rand(tensor.shape))
    return buffers


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 700)), max_size=20))
def test_slots_have_one_holder(steps: list[tuple[bool, int]]) -> None:
    pool, held = make_pool(), []
    for takes, count in steps:
        if takes:
            held.append(pool.take(count))
            assert len(held[-1]) == count
        elif held:
            pool.give_back(held.pop(count % len(held)))
        everything = np.concatenate([*held, [0]])  # nobody gets the one that holds zeros
        assert len(set(everything.tolist())) == len(everything)


def test_what_is_stored_is_loaded() -> None:
    pool, source = make_pool(), filled(3, 7)
    first = pool.store(source, np.array([0, 0, 2]), np.array([1, 2, 6]))
    pool.take(5000)  # grows
    target = filled(2, 4)
    slots = np.zeros((2, 4), np.int64)
    slots[1, 1:4] = first
    pool.load(target, slots)
    for got, given_in in ((target.keys, source.keys), (target.values, source.values)):
        expected = torch.zeros_like(got)
        for column, (row, place) in enumerate([(0, 1), (0, 2), (2, 6)], start=1):
            expected[:, :, 1, column] = given_in[:, :, row, place]
        assert torch.equal(got, expected)
    states = pool.hidden(np.array([first[2], -1]))
    assert torch.equal(states[0], source.hidden[2, 6])
    assert states[1].isnan().all()


def test_a_pool_without_memory_can_be_read() -> None:
    pool, target = make_pool(), filled(2, 4)
    for _ in range(2):
        pool.load(target, np.zeros((2, 4), np.int64))
        assert not target.keys.any()
        assert not target.values.any()
        assert pool.hidden(np.array([-1, -1])).isnan().all()
        assert pool._hidden.nbytes == 0
        pool.take(3)
        target = filled(2, 4)
        pool.load(target, np.zeros((2, 4), np.int64))
        assert not target.keys.any()
        assert not target.values.any()
        pool.clear()
    assert pool.take(2).tolist() == [1, 2]


def test_a_row_is_loaded_with_its_hidden_states() -> None:
    pool, source, target = make_pool(), filled(2, 5), filled(3, 6)
    before = target.keys.clone()
    slots = pool.store(source, np.array([1, 1]), np.array([3, 4]))
    pool.load_row(target, 2, slots)
    assert torch.equal(target.keys[:, :, 2, :2], source.keys[:, :, 1, 3:5])
    assert torch.equal(target.values[:, :, 2, :2], source.values[:, :, 1, 3:5])
    assert torch.equal(target.hidden[2, :2], source.hidden[1, 3:5])
    before[:, :, 2, :2] = target.keys[:, :, 2, :2]
    assert torch.equal(target.keys, before)


def test_segments_share_the_slots_of_what_they_were_split_from() -> None:
    pool = make_pool()
    whole = Segment(pool, pool.take(5))
    first, rest = whole.split(2)
    assert first.num_bytes + rest.num_bytes == whole.num_bytes == 5 * SHAPES.num_values * 4
    parts = [Part(first, 0, 2), Part(rest, 2, 1)]
    assert slots_of(parts).tolist() == whole.slots[:3].tolist()
    first.release()
    assert set(pool.take(2).tolist()) == set(first.slots.tolist())


@pytest.mark.parametrize("limit_slots", [0, 3000])
def test_memory_doubles_up_to_the_limit_and_then_grows_slowly(limit_slots: int) -> None:
    pool = make_pool(limit_slots * SHAPES.num_values * torch.float32.itemsize)
    sizes = []
    for _ in range(40):
        pool.take(150)
        sizes.append(len(pool._hidden))
    steps = sorted(set(sizes))
    assert steps[-1] < 1.3 * 6000
    if limit_slots:
        assert steps[:3] == [1024, 2048, 3000]


def test_an_accelerator_that_is_full_says_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool(10**9)

    def full(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(MemoryError, match="lower cache_bytes=1000000000"):
        pool.take(5)
