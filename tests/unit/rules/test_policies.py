from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from notifier.rules.category import Category, PlatformLimits
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import Burst, Policy, Window
from notifier.rules.preferences import Preferences

SECOND = 1_000_000
MINUTE = 60 * SECOND
EVERYONE = Policy((Window(10, interval_us=60 * SECOND),), gap_us=SECOND)
QUIET = Policy((Window(4, interval_us=60 * SECOND),), gap_us=5 * SECOND)
OWN = Policy(gap_us=10 * SECOND)
CHAT = Category("chat", "urgent", Policy((Window(5, interval_us=10 * SECOND),)), expires_us=3_600 * SECOND)


def some() -> Policies:
    return Policies(EVERYONE, {"quiet": QUIET}, {"42": "quiet", "43": OWN}, {"chat": CHAT})


def test_the_users_rules_and_the_categorys_hold_together() -> None:
    """A category comes on top of the user's rules and replaces nothing."""
    assert some().rules("42", "chat") == Rules(QUIET, CHAT)


def test_a_category_that_is_not_configured_is_default() -> None:
    """Nobody has rules, or sends, of a category that the configuration does not know."""
    default = Category("default", "bulk", Policy(gap_us=7), attempts=3, on_unknown="give_up")
    policies = Policies(categories={"default": default})
    assert policies.category("gone") == default
    assert not policies.knows("gone")


@pytest.mark.parametrize(
    ("chosen", "holds"),
    [
        ({"gap": "500ms"}, EVERYONE),
        ({"gap": "2s"}, EVERYONE.replaced(EVERYONE.windows, gap_us=2 * SECOND)),
        ({"windows": ["99/m"]}, EVERYONE.replaced((*EVERYONE.windows, Window(99, interval_us=MINUTE)), gap_us=SECOND)),
        ({"tier": "quiet", "gap": "2s"}, QUIET),
        ({"tier": "loud"}, EVERYONE),
    ],
)
def test_a_choice_makes_no_rule_wider(chosen: dict[str, Any], holds: Policy) -> None:
    """It adds to the user's rules; a tier that may be chosen replaces them, one that may not is none."""
    policies = Policies(EVERYONE, {"quiet": QUIET, "loud": Policy()}, users_may=["quiet"])
    assert policies.chosen("ann", Preferences.of(chosen)).policy == holds


def test_there_is_always_a_default_category() -> None:
    """Without any configuration `default` exists, in the lane default and without rules."""
    policies = Policies()
    assert policies.knows("default")
    assert policies.category("default") == Category("default", "default", Policy())
    assert policies.rules("u", "default").user.is_empty
    assert set(policies.categories) == {"default"}


def test_a_platform_limits_its_devices_in_one_way() -> None:
    """A send is counted once for its device; a platform of another package is told so."""
    with pytest.raises(ValueError, match="give device or background, not both"):
        PlatformLimits(device=QUIET, background=OWN)


def test_an_unknown_tier_is_noticed_when_the_policies_are_built() -> None:
    """No user can be without rules because of a tier's name that is wrong."""
    with pytest.raises(KeyError):
        Policies(users={"42": "nope"})


@pytest.mark.parametrize(
    ("policy", "horizon_us"),
    [
        (Policy(), 0),
        (Policy(gap_us=5), 5),
        (Policy((Window(1, interval_us=10_000), Window(2, interval_us=30_000))), 30_000),
        (Policy((Window(1, interval_us=10_000),), gap_us=40_000), 40_000),
        (Policy((Window(1, interval_us=10_000),), burst=Burst(3, every_us=20_000)), 60_000),
    ],
)
def test_the_horizon_is_the_longest_of_intervals_and_gap(policy: Policy, horizon_us: int) -> None:
    """A send matters for as long as the longest rule looks back, be it a window or the gap."""
    assert policy.horizon_us == horizon_us
    assert Rules(policy, Category("c", policy=Policy(gap_us=20))).horizon_us == max(horizon_us, 20)


def test_empty_means_that_nothing_is_ever_held() -> None:
    """A policy is empty exactly if it has neither a window nor a gap."""
    assert Policy().is_empty
    assert not Policy(gap_us=1).is_empty
    assert not Policy((Window(1, interval_us=1_000),)).is_empty
    assert not Policy(burst=Burst(1, every_us=1)).is_empty


def test_policies_read_as_in_the_yaml() -> None:
    """A window and a policy are shown as people write them."""
    assert str(Window(10, interval_us=60 * SECOND)) == "10/1m"
    assert (
        str(Policy((Window(5, interval_us=10 * SECOND), Window(200, interval_us=86_400 * SECOND)), 1_500_000))
        == "5/10s, 200/1d, gap 1500ms"
    )
    assert str(Policy()) == "no rules"


def test_rules_are_values() -> None:
    """Rules can be shared between threads and used as keys: equal ones are one, and none can be changed."""
    assert len({some().rules("1", "chat"), some().rules("2", "chat")}) == 1
    with pytest.raises(FrozenInstanceError):
        EVERYONE.gap_us = 0  # type: ignore[misc]


def test_a_device_is_not_counted_where_the_users_rules_are_narrower() -> None:
    """Ten a minute never make 240 a minute nor 5,000 an hour; what bypasses them gets what they leave."""
    limits = PlatformLimits(device=Policy((Window(240, interval_us=MINUTE), Window(5_000, interval_us=60 * MINUTE))))
    held, bypassing = limits.of_device(Policy((Window(10, interval_us=MINUTE),), gap_us=1))
    assert held.is_empty
    assert bypassing == Policy((Window(230, interval_us=MINUTE), Window(4_400, interval_us=60 * MINUTE)))
    loose = Policy((Window(100, interval_us=MINUTE),))
    assert limits.of_device(loose) == (limits.device, limits.device), "6,000 an hour"
    assert limits.of_device(Policy()) == (limits.device, limits.device)
    assert limits.of_device(Policy(gap_us=MINUTE))[0].is_empty
    assert PlatformLimits().of_device(Policy()) == (Policy(), Policy())


@pytest.mark.parametrize(
    ("policy", "interval_us", "most"),
    [
        (Policy(), 10, None),
        (Policy((Window(3, interval_us=10_000),)), 10_000, 3),
        (Policy((Window(3, interval_us=10_000),)), 10_001, 6),
        (Policy((Window(3, interval_us=10_000),), gap_us=10_000), 10_001, 2),
        (Policy(gap_us=5), 5, 1),
        (Policy(gap_us=5), 6, 2),
        (Policy(burst=Burst(3, every_us=5)), 5, 3),
        (Policy(burst=Burst(3, every_us=5)), 6, 4),
    ],
)
def test_the_most_that_rules_admit(policy: Policy, interval_us: int, most: int | None) -> None:
    """The bound holds for any half-open interval, and a schedule at the bound exists for one rule alone."""
    assert policy.max_in(interval_us) == most
