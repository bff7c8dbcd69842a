"""Tags: which partition a user is in, and which slot a partition has."""

from collections import Counter

import pytest
from redis.crc import key_slot

from notifier.store.tags import MAX, TAGS, number_of, tag_of

# Written down: another hash would look for what waits where it is not.
NUMBERS = {"42": 58, "7": 2, "ann@example.com": 30, "ürgen": 21, "": 52, "\udc80": 8}


def test_where_users_are() -> None:
    """It follows from the id alone, by a hash that never changes."""
    assert {user: number_of(user, MAX) for user in NUMBERS} == NUMBERS
    assert number_of("42", 1) == 0


def test_users_are_spread() -> None:
    """The fullest of 64 partitions has at most 15 % more than its share of 100,000 users."""
    counts = Counter(number_of(f"user-{n}", MAX) for n in range(100_000))
    assert len(counts) == MAX
    assert max(counts.values()) < 1.15 * 100_000 / MAX


@pytest.mark.parametrize("count", [2, 3, 16, 64])
def test_slots_are_spread(count: int) -> None:
    """Any number of partitions, and any number of nodes with even shares of the slots, get as even shares of them."""
    slots = [key_slot(tag_of(number, count).encode()) for number in range(count)]
    assert slots == [i * MAX // count * 256 + 128 for i in range(count)]
    assert len(set(TAGS)) == MAX
