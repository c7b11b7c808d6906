"""The radix cache against a dictionary of all prefixes."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsearch.policies.prefix_cache import Match, PrefixCache, common_prefix

released: list[tuple[str | None, tuple[int, ...]]] = []


@dataclass(frozen=True)
class Values:
    """A payload that knows whose it is: one (key, prefix) per token, 3 bytes each."""

    items: tuple[tuple[str | None, tuple[int, ...]], ...]

    @property
    def num_bytes(self) -> int:
        return 3 * len(self.items)

    def split(self, at: int) -> "tuple[Values, Values]":
        return Values(self.items[:at]), Values(self.items[at:])

    def release(self) -> None:
        released.extend(self.items)


def values(key: str | None, ids: tuple[int, ...], start: int) -> Values:
    return Values(tuple((key, ids[: i + 1]) for i in range(start, len(ids))))


def read(
    cache: PrefixCache[Values], match: Match[Values]
) -> list[tuple[str | None, tuple[int, ...]]]:
    found: list[tuple[str | None, tuple[int, ...]]] = []
    for payload, start, length in cache.parts(match):
        assert start == len(found)
        found += payload.items[:length]
    return found


def put(cache: PrefixCache[Values], key: str | None, ids: tuple[int, ...]) -> None:
    start = cache.match(key, ids).length
    cache.insert(key, ids, start, values(key, ids, start))


SEQUENCES = st.lists(st.integers(0, 2), max_size=7).map(tuple)
KEYS = st.sampled_from([None, "a"])
OPERATIONS = st.lists(st.tuples(st.sampled_from(["put", "match"]), KEYS, SEQUENCES), max_size=25)


@settings(max_examples=150, deadline=None)
@given(OPERATIONS)
def test_without_eviction_it_equals_a_dictionary_of_prefixes(
    operations: list[tuple[str, str | None, tuple[int, ...]]],
) -> None:
    cache: PrefixCache[Values] = PrefixCache(10**9)
    known: set[tuple[str | None, tuple[int, ...]]] = set()
    for operation, key, ids in operations:
        length = max(n for n in range(len(ids) + 1) if n == 0 or (key, ids[:n]) in known)
        match = cache.match(key, ids)
        assert match.length == length
        assert read(cache, match) == [(key, ids[: i + 1]) for i in range(length)]
        if operation == "put":
            put(cache, key, ids)
            known |= {(key, ids[: i + 1]) for i in range(len(ids))}
        assert cache.num_bytes == 3 * len(known)
        assert cache.num_bytes == sum(n.payload.num_bytes for n in cache.nodes() if n.payload)


@settings(max_examples=150, deadline=None)
@given(OPERATIONS, st.integers(0, 40), SEQUENCES)
def test_eviction_keeps_the_limit_the_pins_and_whole_prefixes(
    operations: list[tuple[str, str | None, tuple[int, ...]]],
    limit: int,
    pinned: tuple[int, ...],
) -> None:
    cache: PrefixCache[Values] = PrefixCache(limit)
    put(cache, None, pinned)
    pin = cache.match(None, pinned)
    cache.pin(pin.node)
    for _, key, ids in operations:
        put(cache, key, ids)
        cache.evict()
        assert cache.match(None, pinned).length == len(pinned)
        assert read(cache, pin) == [(None, pinned[: i + 1]) for i in range(len(pinned))]
        match = cache.match(key, ids)
        assert read(cache, match) == [(key, ids[: i + 1]) for i in range(match.length)]
        assert cache.num_bytes == sum(n.payload.num_bytes for n in cache.nodes() if n.payload)
        assert cache.num_bytes <= max(limit, 3 * pin.node.length)
    cache.unpin(pin.node)
    cache.evict()
    assert cache.num_bytes <= limit


@settings(max_examples=150, deadline=None)
@given(OPERATIONS, st.integers(0, 40), KEYS, SEQUENCES)
def test_a_match_that_goes_on_from_a_pinned_one_equals_a_new_one(
    operations: list[tuple[str, str | None, tuple[int, ...]]],
    limit: int,
    key: str | None,
    wanted: tuple[int, ...],
) -> None:
    cache: PrefixCache[Values] = PrefixCache(limit)
    known = cache.match(key, wanted)
    cache.pin(known.node)
    for _, other, ids in operations:
        put(cache, other, ids)
        cache.evict()
        going_on = cache.match(key, wanted, known)
        assert going_on == cache.match(key, wanted)
        assert read(cache, going_on) == [(key, wanted[: i + 1]) for i in range(going_on.length)]
        cache.pin(going_on.node)
        cache.unpin(known.node)
        known = going_on


@settings(max_examples=150, deadline=None)
@given(OPERATIONS, st.integers(0, 40))
def test_every_payload_is_held_or_released_once(
    operations: list[tuple[str, str | None, tuple[int, ...]]], limit: int
) -> None:
    cache: PrefixCache[Values] = PrefixCache(limit)
    released.clear()
    given_in = []
    for operation, key, ids in operations:
        start = cache.match(key, ids).length if operation == "put" else 0
        given_in += values(key, ids, start).items
        cache.insert(key, ids, start, values(key, ids, start))
        cache.evict()
    held = [item for node in cache.nodes() if node.payload for item in node.payload.items]
    assert sorted(held + released, key=str) == sorted(given_in, key=str)


def test_the_least_recently_used_leaf_goes_first() -> None:
    cache: PrefixCache[Values] = PrefixCache(3 * 6)
    put(cache, None, (1, 1))
    put(cache, None, (2, 2))
    put(cache, None, (3, 3))
    cache.match(None, (1, 1))
    put(cache, None, (4, 4))
    cache.evict()
    kept = [n for n in (1, 2, 3, 4) if cache.match(None, (n, n)).length == 2]
    assert kept == [1, 4]  # down to nine tenths: two of four leave


def test_leaves_of_one_age_are_evicted_beside_pinned_ones() -> None:
    cache: PrefixCache[Values] = PrefixCache(10**9)
    for ids, is_pinned in [
        ((1, 0, 1), False),
        ((1, 0, 1, 0), False),
        ((0, 1), True),
        ((1, 0), False),
        ((1, 0, 0, 1), False),
        ((1, 1), True),
    ]:
        put(cache, None, ids)
        if is_pinned:
            cache.pin(cache.match(None, ids).node)
    cache.limit_bytes = 0
    cache.evict()
    assert cache.num_bytes == 3 * 4
    assert cache.match(None, (1, 0, 0, 1)).length == 1


def test_a_payload_whose_prefix_is_gone_is_not_added() -> None:
    cache: PrefixCache[Values] = PrefixCache(100)
    cache.insert(None, (1, 2, 3), 2, values(None, (1, 2, 3), 2))
    assert cache.num_bytes == 0
    assert cache.match(None, (1, 2, 3)).length == 0


def test_a_match_survives_a_split_above_it() -> None:
    cache: PrefixCache[Values] = PrefixCache(1000)
    put(cache, None, (1, 2, 3, 4, 5, 6))
    match = cache.match(None, (1, 2, 9))
    put(cache, None, (1, 2, 3, 4, 8))
    assert read(cache, match) == [(None, (1,)), (None, (1, 2))]


def test_nothing_is_kept_under_a_limit_of_zero() -> None:
    cache: PrefixCache[Values] = PrefixCache(0)
    put(cache, None, (1, 2, 3))
    cache.evict()
    assert cache.num_bytes == 0
    with pytest.raises(ValueError, match="cache_bytes"):
        PrefixCache(-1)


def test_common_prefix() -> None:
    assert common_prefix((1, 2, 3), (1, 2)) == 2
    assert common_prefix((1, 2, 3), (1, 5, 3)) == 1
    assert common_prefix((), (1,)) == 0
