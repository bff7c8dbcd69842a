"""How long an access token is used."""

import pytest

from notifier.providers.transport.oauth import MAX_LIFETIME_S, TOKEN_LIFETIME_S, _lifetime_s


@pytest.mark.parametrize(
    ("told", "lifetime_s"),
    [
        (3600, 3600),
        (0, 1),
        (-5, 1),
        (10**30, MAX_LIFETIME_S),
        *((odd, TOKEN_LIFETIME_S) for odd in (None, "3600", True, 3600.5, [])),
    ],
)
def test_a_lifetime_is_within_limits(told: object, lifetime_s: float) -> None:
    """A token is used for a second at least and a day at most; if nothing sensible is told, for five minutes."""
    assert _lifetime_s(told) == lifetime_s
