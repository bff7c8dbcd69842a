"""The schema of `notifier.yaml`: every key, its default, and the objects that are built from it.

Durations are whole microseconds here (`gap_us`) and text with a unit in the file (`gap: 1.5s`). Validation reads no
secret, because a producer that only enqueues has none and loads the same file. Methods read secrets when called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Discriminator, Field, PrivateAttr, Tag, model_validator

from notifier.errors import SettingsError
from notifier.rules.category import Category, Digest, Lane, OnUnknown, Overflow, Priority, WhenBlocked
from notifier.rules.hours import Hours
from notifier.rules.policies import Policies
from notifier.rules.zones import DEFAULT_ZONE
from notifier.settings import hours
from notifier.settings.checks import Duration, File, Limit, LimitName, Name, Positive, Rate, Tier, User, Zone, wrong_at
from notifier.settings.rates import version_of
from notifier.settings.schema_processes import (
    DAY,
    MINUTE,
    SECOND,
    EventsSettings,
    HistorySettings,
    LogSettings,
    WorkerSettings,
)
from notifier.settings.schema_providers import Providers, ProvidersSettings
from notifier.settings.schema_redis import RedisSettings
from notifier.settings.schema_rules import EveryoneSettings, MaxWaiting, RuleSettings, UserSettings
from notifier.settings.schema_types import Section
from notifier.settings.users_files import Entry, UsersFiles
from notifier.units import format_duration

# A send may take this much longer than its provider's timeout: round trips to Redis, and a busy event loop.
LEASE_MARGIN_US: Final = 2 * SECOND

MAX_OVERALL: Final = 100_000  # Redis keeps a record of each of these sends

QuietOrIgnore = Annotated[tuple[Hours, ...] | Literal["ignore"], hours.QUIET_OR_IGNORE]
COUNTED: Final = "A text of the one message; {count} in it becomes how many it stands for."


class UsersMaySettings(Section):
    """Choices that users may make, by `Notifier.users`. Users can always choose to receive less."""

    tier: list[Tier] = Field(default_factory=list)


class DigestSettings(Section):
    """How waiting notifications become one message: `when_blocked: digest`."""

    after: int = Field(ge=2, le=1_000_000, description="The digest is sent when this many notifications wait.")
    within_us: Positive = Field(alias="within", description="The digest goes when its first one has waited this long.")
    title: Annotated[str, Field(max_length=1000)] | None = Field(default=None, description=COUNTED)
    body: Annotated[str, Field(max_length=1000)] | None = Field(default=None, description=COUNTED)

    @model_validator(mode="after")
    def _has_a_text(self) -> Self:
        if not (self.title or self.body):
            raise wrong_at("body", 'is missing, and title too; give one, such as "{count} new comments"')
        return self

    def value(self) -> Digest:
        return Digest(self.after, self.within_us, self.title, self.body)


class CategorySettings(RuleSettings):
    """A kind of message: its lane, and rules on top of the user's."""

    lane: Lane
    expires_us: Positive | None = Field(default=None, alias="expires")
    bypass: bool = False
    attempts: int = Field(default=5, ge=1, le=100)
    on_unknown: OnUnknown = "resend"
    app: Name | None = None
    when_blocked: WhenBlocked = "queue"
    overflow: Overflow = "reject"
    digest: DigestSettings | None = None
    quiet: QuietOrIgnore | None = Field(default=None, alias="quiet_hours")
    priority: Priority = "normal"
    cost: int = Field(default=1, ge=1, le=10)
    overall: Rate | None = Field(
        default=None, description="How many notifications of this category all users together receive."
    )

    @property
    def quiet_hours(self) -> tuple[Hours, ...] | None:
        return None if self.quiet == "ignore" else self.quiet

    def value(self, name: str) -> Category:
        same = {
            key: getattr(self, key) for key in Category.__dataclass_fields__.keys() & type(self).model_fields.keys()
        }
        digest = self.digest.value() if self.digest else None
        own = {"name": name, "policy": self.policy(), "ignores_quiet": self.quiet == "ignore", "digest": digest}
        return Category(**same | own)

    @model_validator(mode="after")
    def _digest_where_it_is_used(self) -> Self:
        if (self.when_blocked == "digest") != (self.digest is not None):
            missing = self.digest is None
            why = "is missing; give after, within and a text" if missing else "needs when_blocked: digest beside it"
            raise wrong_at("digest", why)
        return self

    @model_validator(mode="after")
    def _overall_can_hold(self) -> Self:
        if self.overall is not None and self.bypass:
            raise wrong_at("overall", "holds nothing back beside bypass: true; leave out one of them")
        if self.overall is not None and self.overall.limit > MAX_OVERALL:
            why = f"is more than {MAX_OVERALL}, and each send is counted; give fewer in a shorter time, such as 1000/s"
            raise wrong_at("overall", why)
        return self


# Pydantic puts the tags into the paths of errors; `settings/errors.py` removes them.
UserEntry = Annotated[
    Annotated[Tier, Tag("<tier>")] | Annotated[UserSettings, Tag("<rules>")],
    Discriminator(lambda value: "<tier>" if isinstance(value, str) else "<rules>"),
]


class Settings(Section):
    """Sections and keys at the top level of the file."""

    redis: RedisSettings = RedisSettings()
    zone: Zone = DEFAULT_ZONE
    user: EveryoneSettings = EveryoneSettings()
    tiers: dict[Name, UserSettings] = Field(default_factory=dict)
    users: dict[User, UserEntry] = Field(default_factory=dict)
    users_from: File | None = None
    users_may: UsersMaySettings = UsersMaySettings()
    categories: dict[Name, CategorySettings] = Field(default_factory=dict)
    limits: dict[LimitName, Limit] = Field(default_factory=dict)
    providers: Providers = ProvidersSettings()
    worker: WorkerSettings = WorkerSettings()
    max_waiting: MaxWaiting | None = None
    keep_failed_us: Positive = Field(default=7 * DAY, alias="keep_failed")
    keep_delivered_us: Duration = Field(default=10 * MINUTE, alias="keep_delivered")
    keep_feedback_us: Positive = Field(default=30 * DAY, alias="keep_feedback")
    events: EventsSettings = EventsSettings()
    history: HistorySettings = HistorySettings()
    dedupe_for_us: Positive = Field(default=DAY, alias="dedupe_for")
    log: LogSettings = LogSettings()
    tracing: Literal["none", "opentelemetry"] = "none"
    _rates: Mapping[str, Any] = PrivateAttr(default_factory=dict)
    _rates_version: str = PrivateAttr("")
    _places_in_files: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _partitions_have_a_share(self) -> Self:
        parts = self.redis.partitions
        shared = {f"the limit of providers.{name}": of.project for name, of in self.providers.limits().items()}
        shared |= {f"categories.{name}.overall": of.overall for name, of in self.categories.items()}
        for name, window in shared.items():
            if parts > 1 and window is not None and window.limit < parts:
                why = f"each has a share of {name}, which is {window}: give at most {window.limit}, or a wider limit"
                raise wrong_at("redis.partitions", why)
        if self.max_waiting is not None and self.max_waiting < parts:
            raise wrong_at(
                "redis.partitions",
                f"each has a share of max_waiting, which is {self.max_waiting}",
            )
        return self

    @model_validator(mode="after")
    def _lease_outlasts_every_send(self) -> Self:
        # If a lease ends before the answer, a second worker sends the notification again.
        for name, provider in self.providers.platforms().items():
            least = provider.timeout_us + LEASE_MARGIN_US
            if self.worker.lease_us < least:
                lease, margin = format_duration(self.worker.lease_us), format_duration(LEASE_MARGIN_US)
                raise wrong_at(
                    "worker.lease",
                    f"{lease} is too short for the timeout of providers.{name}: "
                    f"give at least {format_duration(least)}, which is the timeout and {margin}",
                )
        return self

    @model_validator(mode="after")
    def _hours_leave_time_to_send(self) -> Self:
        own: dict[str, Entry] = {"user": self.user}
        for section, entries in (("tiers", self.tiers), ("users", self.users)):
            own |= {f"{section}.{name}": entry for name, entry in entries.items()}
        for path, why in self._without_time(own):
            raise wrong_at(path, why)
        return self

    def _without_time(self, own: Mapping[str, Entry]) -> Iterator[tuple[str, str]]:
        """Yield path and message of hours that leave no time to send: a category's, or an entry's with a category's."""
        lead_us = self.worker.lease_us
        held = {f"categories.{name}": each for name, each in self.categories.items() if not each.bypass}
        for path, category in held.items():
            if why := category.without_time(lead_us, RuleSettings(), {}):
                yield f"{path}.{category.hours_key}", why
        also = {path: each.policy().closed_minutes for path, each in held.items() if each.quiet != "ignore"}
        for path, entry in own.items():
            if not isinstance(entry, str) and (why := entry.without_time(lead_us, self.user, also)):
                yield f"{path}.{entry.hours_key}", why

    @model_validator(mode="after")
    def _every_cost_fits(self) -> Self:
        costly = {name: each for name, each in self.categories.items() if each.cost > 1 and not each.bypass}
        if not costly:
            return self
        limits = {"user": self.user.max_cost}
        limits |= {f"tiers.{name}": tier.max_cost for name, tier in self.tiers.items()}
        limits |= {f"users.{name}": each.max_cost for name, each in self.users.items() if not isinstance(each, str)}
        for name, category in costly.items():
            for whose, limit in {**limits, f"categories.{name}": category.max_cost}.items():
                if limit < category.cost:
                    at = f"categories.{name}.cost"
                    raise wrong_at(at, f"never fits into the rules of {whose}; give at most {limit}")
        return self

    @model_validator(mode="after")
    def _every_app_is_known(self) -> Self:
        known = {name for platform in self.providers.platforms().values() for name in platform.apps}
        for name, category in self.categories.items():
            if category.app is not None and category.app not in known:
                apps = f"known are {', '.join(sorted(known))}" if known else "there are none"
                raise wrong_at(f"categories.{name}.app", f"no platform has an app {category.app!r}; {apps}")
        return self

    @property
    def rates_version(self) -> str:
        """The version of these rates; see `notifier.settings.rates.version_of`."""
        return self._rates_version

    @property
    def rates(self) -> Mapping[str, Any]:
        """The sections that are rates, as they are written, with the users of `users_from` among `users`."""
        return self._rates

    @property
    def places_in_files(self) -> Mapping[str, str]:
        """The place of each user of `users_from`, such as `users.jsonl:2`."""
        return self._places_in_files

    def complete(self, rates: Mapping[str, Any], more: UsersFiles) -> None:
        """Add the users of `users_from`, and keep the rates as they are written.

        Raise SettingsError if the hours of a user leave no time to send.
        """
        for path, why in self._without_time(more.entries):
            user, _, key = path.rpartition(".")
            raise SettingsError(f"{more.places[user]}: {key}: {why}")
        self.users.update(more.entries)
        if more.written:
            rates = {**rates, "users": {**rates.get("users", {}), **more.written}}
        self._rates, self._rates_version, self._places_in_files = rates, version_of(rates), more.places

    @property
    def max_waiting_here(self) -> int | None:
        """How many notifications of all users together may wait in one partition; None: any number."""
        return None if self.max_waiting is None else self.max_waiting // self.redis.partitions

    def policies(self) -> Policies:
        """Return the rules of this file, ready for look-ups; see `Policies` for the order of resolution."""
        everyone = self.user.policy()
        return Policies(
            everyone,
            {name: tier.policy(everyone) for name, tier in self.tiers.items()},
            {user: entry if isinstance(entry, str) else entry.policy(everyone) for user, entry in self.users.items()},
            {name: category.value(name) for name, category in self.categories.items()},
            self.providers.limits(),
            zone=self.zone,
            lead_us=self.worker.lease_us,
            users_may=self.users_may.tier,
        )
