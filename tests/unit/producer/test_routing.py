"""What was split over partitions comes back as one answer, in order."""

import pytest

from notifier.errors import NotReplicatedError, OverloadedError, Refused
from notifier.producer.routing import Split
from notifier.store.partitions import Partition


def parts(count: int) -> list[Partition]:
    return [Partition(number, count, None, None) for number in range(count)]


def test_answers_come_in_order() -> None:
    """However they were split; of a job that was looked for in several, the one that knows it answers."""
    a, b = parts(2)
    split = Split([[a], [b], [a]])
    asked = split.ask(["x", "y", "z"], iter)  # type: ignore[arg-type, return-value]
    assert [(at.number, list(steps)) for at, steps in asked] == [(0, ["x", "z"]), (1, ["y"])]
    assert split.answers([["X", "Z"], ["Y"]]) == ["X", "Y", "Z"]
    assert Split([[a, b]]).answers([["unknown"], ["cancelled"]], "unknown") == ["cancelled"]


def test_what_was_refused_keeps_its_place() -> None:
    """All that were refused, by the places of the whole."""
    a, b = parts(2)
    refused = OverloadedError([Refused("u", "user", 1, 1, 1)], 2)
    with pytest.raises(OverloadedError) as caught:
        Split([[a], [b], [a]]).answers([refused, ["Y"]])
    assert [(one.place, caught.value.tried) for one in caught.value.refused] == [(2, 3)]


def test_what_is_not_replicated_is_told_of_all_partitions() -> None:
    """And beside it what was refused: neither hides the other."""
    a, b = parts(2)
    over = [Refused("u", "user", 1, 1, 1)]
    for first, refused in ((NotReplicatedError(["x"], "why", over), [2]), (NotReplicatedError(["x"], "why"), [])):
        with pytest.raises(NotReplicatedError) as caught:
            Split([[a], [b], [a]]).answers([first, NotReplicatedError(["y"], "why")])
        assert (caught.value.job_ids, [one.place for one in caught.value.refused]) == (["x", "y"], refused)
    with pytest.raises(NotReplicatedError, match="1 more refused: 1 wait") as caught:
        Split([[a], [b], [a]]).answers([OverloadedError(over, 2), NotReplicatedError(["y"], "why")])
    assert (caught.value.job_ids, [one.place for one in caught.value.refused]) == (["y"], [2])
