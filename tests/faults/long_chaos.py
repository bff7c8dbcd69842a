"""`make chaos`: twenty thousand notifications on three lanes, sixty-six dead workers, and the laws over all of it."""

from tests.faults.chaos import unleash


def test_twenty_thousand_through_sixty_six_deaths() -> None:
    """Nothing lost, nothing settled twice, nobody burst, and no more repeats than the dead had in flight."""
    outcome = unleash(count=20_000, users=60, kills=66, workers=4)
    lost, poison = outcome.missing - outcome.poisoned, outcome.poisoned
    deaths = ", ".join(f"{n} {step}" for step, n in sorted(outcome.kills.items()))
    print(  # noqa: T201 - what was asked for
        f"\n{outcome.count} notifications, {outcome.kills.total()} deaths ({deaths}): {outcome.ended['delivered']} "
        f"delivered, {len(lost)} lost, {len(poison)} put aside as poison, {outcome.repeats} "
        f"repeated of {outcome.repeats_allowed} in flight at a death, {len(outcome.broken)} rules broken"
    )
    outcome.assert_right()
