"""What is known of the settings in force."""

from notifier.operations.in_force import Known
from notifier.queue.waits import describe_waits
from notifier.settings import parse_settings
from notifier.settings.provenance import Provenance
from notifier.settings.yaml_source import Source
from notifier.store.published import Published

RATES = """
user: {windows: [10/minute, 20/calendar-day], gap: 1500ms, burst: {capacity: 5, refill: 1/10s}}
tiers: {quiet: {gap: 5s}}
users: {"42": {gap: 7s}}
categories:
  offers: {lane: bulk, windows: [3/calendar-month], gap: 4h}
"""


def test_limits_are_named_as_what_waits_for_them_names_them() -> None:
    """Each kind of rule, of all users, a tier and a category; none of a single user."""
    settings = parse_settings(RATES)
    known = Known(settings, settings.policies(), Published(), Provenance(settings, Source(), ""))
    marks = ["u10/60000000", "u20/day", "ug1500000", "ut5/10000000", "ug5000000"]
    of_category = ["c3/month offers", "cg14400000000 offers"]
    assert known.limits == {describe_waits(field)[1] for field in marks + of_category}
