"""The hash slots of a fleet of several partitions, and the partition of each user. Both never change."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from notifier.scripts.keys import RQ, Prefixes
from notifier.units import to_bytes

if TYPE_CHECKING:
    from notifier.settings import RedisSettings

MAX: Final = 64
HASH: Final = 1  # the version of `number_of`; another way to compute it gets another number
# The i-th tag is in slot i * 256 + 128, so however many nodes there are, each gets about as many partitions.
TAGS: Final = (  # noqa: SIM905 - shorter
    "53t j3j if5 kec 574 74b akm 6bk 96a frw 0ip oin d1i 38o 0m0 xw he6 box 40w c9q hav 7ah 447 67a 1js fcu 0xr m5 1n3"
    " 3me e2j iu 712 52d cmk 4dm 75r h5l 02bb ice 3y7 1za 2k6 8ax wu7 931 yg 8e8 7d8 5gn 621 41g jc0 qkn 66q i6o 3h5"
    " 1kc 2z4 0yb 3lu des he 802"
).split()


def number_of(user: str, count: int) -> int:
    """The partition of a user, out of `count`. It never changes: the user's backlogs and sends are there."""
    return int.from_bytes(blake2b(to_bytes(user), digest_size=8).digest(), "big") % count


def tag_of(number: int, count: int) -> str:
    return TAGS[number * MAX // count]


def prefixes_of(config: RedisSettings, number: int) -> Prefixes:
    """Return the prefixes of a partition's keys."""
    ours = f"{{{tag_of(number, config.partitions)}}}{config.prefix}"
    return Prefixes(ours, f"{ours}:{RQ}")
