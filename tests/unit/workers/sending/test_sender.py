"""Sender: what the answers of providers make of a notification, by every combination of them."""

import asyncio
import itertools
import json
import zlib
from base64 import b64decode
from dataclasses import replace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from notifier.notification import Device, Notification
from notifier.notification.job import encode_data
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.queue.calls import DeadToken, Leased, Settlement
from notifier.rules.category import Category, Digest
from workers.sending.capacity import Capacity, RouteLimit
from workers.sending.circuits import Circuits
from workers.sending.proofs import Unproven
from workers.sending.sender import MAX_CRASHES, Backoff, NotOursError, Sender

CATEGORY = Category("default", attempts=3)
BACKOFF = Backoff(2_000_000, 600_000_000)
FINAL = {Outcome.DELIVERED, Outcome.REJECTED, Outcome.DEAD_TOKEN}
FREE = {Outcome.UNSENT, Outcome.FAULT, Outcome.BUSY, Outcome.FULL}


class Observer:
    """In the circuits' place: what was not sent waits for its route, save what waits for its device."""

    def __init__(self) -> None:
        self.not_sent_to_anybody = 0

    def record(self, _route: str, answer: Answer, _refusals: int, _device: str) -> tuple[Answer, bool]:
        return answer, answer.outcome in FREE - {Outcome.BUSY}

    def not_sent(self) -> None:
        self.not_sent_to_anybody += 1


OBSERVER = Observer()  # of tests that ask it nothing


class Scripted:
    """A provider that answers by token, and remembers whom it was asked to send to."""

    platform = "apns"

    def __init__(self, answers: dict[str, Answer | Exception]) -> None:
        self.answers = answers
        self.asked: list[Dispatch] = []

    async def send(self, dispatch: Dispatch) -> Answer:
        self.asked.append(dispatch)
        answer = self.answers[dispatch.device.token]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def service(self, _device: Any) -> str:
        return "wire"

    async def probe(self, _device: Any) -> bool:
        return True

    async def close(self) -> None:
        """Nothing is open."""


class Slow(Scripted):
    """Answers after a while."""

    async def send(self, dispatch: Dispatch) -> Answer:
        await asyncio.sleep(0.06)
        return await super().send(dispatch)


def tokens(count: int) -> list[str]:
    return [f"{n:02x}" * 32 for n in range(count)]


def leased(count: int = 1, **fields: Any) -> Leased:
    devices = [Device("apns", token) for token in tokens(count)]
    data = encode_data(Notification(user="anna", devices=devices, title="Hello"))
    made = Leased("job", "7", "anna", "default", data, None)
    return made._replace(**fields)


async def send_now(
    sender: Sender, job: Leased, category: Category, observer: Observer = OBSERVER
) -> Settlement | Unproven:
    return await send(sender, job, category, asyncio.get_running_loop().time(), observer)


async def send(
    sender: Sender, job: Leased, category: Category, leased_at: float, observer: Observer = OBSERVER
) -> Settlement | Unproven:
    return await sender.send(job, category, leased_at, cast("Circuits", observer))


def settle(job: Leased, *answers: Answer | Exception, category: Category = CATEGORY) -> tuple[Settlement, Scripted]:
    provider = Scripted(dict(zip(tokens(len(answers)), answers, strict=True)))
    sender = Sender({"apns": provider}, BACKOFF)
    made = asyncio.run(send_now(sender, job, category))
    return (made.settlement if isinstance(made, Unproven) else made), provider


@pytest.mark.parametrize(("word", "count"), [("delivered", 1), ("unknown", 2)])
def test_of_an_orphan_also_what_was_given_up_is_asked_for(word: str, count: int) -> None:
    """The worker that died no longer waited for that answer; its provider may have the message to read all the same."""
    sender = Sender({"apns": Scripted({})}, BACKOFF)
    silences = sender.silences(leased(2, answered=json.dumps({"0": word}).encode()), CATEGORY)
    assert [silence.device.token for silence in silences] == tokens(2)[2 - count :]


def reason(settlement: Settlement) -> str:
    return zlib.decompress(b64decode(str(settlement.detail))).decode()


@pytest.mark.parametrize(
    ("field", "value"),
    [("reason", b"BadRequest"), ("help", ["x"]), ("status", "400"), ("retry_after_us", "60"), ("gone_at_us", 1.5)],
)
def test_an_answer_with_a_field_of_another_type_is_the_providers_fault(field: str, value: Any) -> None:
    """Others write providers too: it is unknown and tried again, as where the provider's client breaks."""
    with capture_logs() as lines:
        settled, _ = settle(leased(), replace(Answer(Outcome.REJECTED), **{field: value}))
    assert (settled.state, settled.word, settled.reached) == ("later", "retried", True)
    (broke,) = (line for line in lines if line["log_level"] == "error")
    assert broke["event"] == "provider_broke"


@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.BUSY, Outcome.FULL])
@pytest.mark.parametrize(("asked_us", "at_most_us"), [(10**30, 24 * 3600 * 10**6), (-5_000_000, 0)])
def test_a_wait_that_a_provider_asks_for_has_bounds(outcome: Outcome, asked_us: int, at_most_us: int) -> None:
    """At most a day and no less than nothing, whoever wrote the provider; Redis could not hold more."""
    answer = Answer(outcome, 429, retry_after_us=asked_us)
    settled, _ = settle(leased(), answer)
    assert answer.retry_after_us == at_most_us
    if outcome is not Outcome.FULL:
        assert isinstance(settled.detail, int)
        assert at_most_us + BACKOFF.first_us // 2 <= settled.detail <= at_most_us + BACKOFF.max_us


@pytest.mark.parametrize(("one", "two"), list(itertools.combinations_with_replacement(Outcome, 2)))
def test_every_pair_of_answers(one: Outcome, two: Outcome) -> None:
    """Final where all answers are; delivered where one is; else again, an attempt spent unless it is nobody's fault."""
    settled, _ = settle(leased(2), Answer(one), Answer(two))
    outcomes = {one, two}
    assert settled.reached == bool(outcomes & {Outcome.DELIVERED, Outcome.UNKNOWN})
    again = outcomes - FINAL
    if not again:
        assert settled.state == ("delivered" if Outcome.DELIVERED in outcomes else "failed")
        assert settled.word == ("delivered" if Outcome.DELIVERED in outcomes else "rejected")
        return
    free = again <= FREE
    aside = Outcome.BUSY in again and Outcome.DELIVERED in outcomes
    assert settled.state == (("wait" if aside else "backlog") if free else "later")
    assert isinstance(settled.detail, int) == (Outcome.BUSY in again or not free), "it waits for a time of its own"
    assert settled.word == ("returned" if free else "retried")
    final = {str(n): o.value for n, o in enumerate((one, two)) if o in FINAL}
    assert (json.loads(settled.answered) if settled.answered else {}) == final


@pytest.mark.parametrize(
    ("outcome", "word"),
    [(Outcome.RETRY, "failed"), (Outcome.UNKNOWN, "failed"), (Outcome.REFUSED, "rejected")],
)
def test_the_last_attempt_is_the_last(outcome: Outcome, word: str) -> None:
    """On the last attempt it ends with the reason; where a device took it before, as delivered."""
    last = leased(2, attempts=2)
    settled, _ = settle(last, Answer(outcome, 503, "Busy"), Answer(Outcome.DEAD_TOKEN, 410, "Unregistered"))
    assert (settled.state, settled.word) == ("failed", word)
    assert "Busy" in reason(settled)
    assert "attempt 3 of 3" in reason(settled)
    settled, _ = settle(last, Answer(outcome), Answer(Outcome.DELIVERED))
    assert settled.state == "delivered"


@pytest.mark.parametrize("outcome", [Outcome.UNSENT, Outcome.FAULT])
@pytest.mark.parametrize("other", [Outcome.RETRY, Outcome.UNKNOWN])
def test_the_last_attempt_of_one_device_leaves_another_its_own(outcome: Outcome, other: Outcome) -> None:
    """Where one device has used up its attempts and the other's route is away, the rest waits for that route."""
    settled, _ = settle(leased(2, attempts=2), Answer(outcome), Answer(other))
    assert (settled.state, json.loads(settled.answered)) == ("backlog", {"1": other.value})
    then, _ = settle(leased(2, attempts=2, answered=settled.answered.encode()), Answer(Outcome.REJECTED), Answer(other))
    assert (then.state, then.word) == ("failed", "failed")


def test_who_answered_gives_no_further_proof() -> None:
    """What a 5xx says of the message is unknown, but it has been read."""
    sender = Sender({"apns": Scripted({tokens(1)[0]: Answer(Outcome.UNKNOWN, 502)})}, BACKOFF)
    assert isinstance(asyncio.run(send_now(sender, leased(), CATEGORY)), Settlement)


def test_a_route_that_is_shut_is_not_asked() -> None:
    """What was leased for its other routes is not sent by this one, and the circuit learns nothing of it."""
    settled, provider = settle(leased(shut=frozenset({"apns"})), Answer(Outcome.DELIVERED))
    assert (settled.state, settled.reached, provider.asked) == ("backlog", False, [])


@pytest.mark.parametrize("outcome", sorted(FREE))
def test_what_is_free_never_ends_it(outcome: Outcome) -> None:
    """A provider that is away or full, a device that is busy, or a fault of ours, spends no attempt, however often."""
    settled, _ = settle(leased(attempts=2, refusals=100), Answer(outcome))
    assert (settled.state, settled.reached) == ("backlog", False)


def test_a_busy_device_is_asked_ever_later() -> None:
    """What the provider asked for is a least wait, spread, and more with each refusal; no attempt is spent."""
    waits = []
    for refusals in (0, 1, 2):
        settled, _ = settle(leased(refusals=refusals), Answer(Outcome.BUSY, 429, retry_after_us=60_000_000))
        assert (settled.state, settled.word) == ("backlog", "returned")
        waits.append(int(settled.detail) - 60_000_000)
    assert [7_500_000 <= wait <= 15_000_000 for wait in waits] == [True, False, False]
    assert waits == sorted(waits)


async def test_what_to_repair_is_told_once() -> None:
    """A hundred messages with one fault of their own are one line for people, which names the fault."""
    answer = Answer(Outcome.REFUSED, 401, "THIRD_PARTY_AUTH_ERROR", 60_000_000, help="upload the key")
    sender = Sender({"apns": Scripted({tokens(1)[0]: answer})}, Backoff(1, 1))
    with capture_logs() as logs:
        for _ in range(100):
            await send(sender, leased(), CATEGORY, 1e9)
    (line,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert (line["event"], line["route"], line["reason"]) == ("message_fault", "apns", "THIRD_PARTY_AUTH_ERROR")
    assert line["help"].startswith("upload the key")


def test_only_those_without_an_answer_are_asked() -> None:
    """Who has answered finally is not sent to again; what was answered is kept and counts."""
    job = leased(3, attempts=1, answered=json.dumps({"0": "delivered", "2": "dead_token"}).encode())
    settled, provider = settle(job, Answer(Outcome.DELIVERED), Answer(Outcome.REJECTED), Answer(Outcome.DELIVERED))
    assert [dispatch.device.token for dispatch in provider.asked] == [tokens(3)[1]]
    assert settled.state == "delivered"


def test_no_answer_by_category() -> None:
    """UNKNOWN is sent again, or given up as failed, never as rejected; either way the permit stays spent."""
    careful = replace(CATEGORY, on_unknown="give_up")
    settled, _ = settle(leased(), Answer(Outcome.UNKNOWN))
    assert (settled.state, settled.reached) == ("later", True)
    settled, _ = settle(leased(), Answer(Outcome.UNKNOWN), category=careful)
    assert (settled.state, settled.word, settled.reached) == ("failed", "failed", True)
    settled, _ = settle(leased(2), Answer(Outcome.UNKNOWN), Answer(Outcome.DELIVERED), category=careful)
    assert settled.state == "delivered"


@pytest.mark.parametrize("order", [("apns", "fcm"), ("fcm", "apns")])
def test_the_routes_of_several_devices_have_one_name(order: tuple[str, str]) -> None:
    """Whichever device stands first: the numbers of a day would be two halves."""
    token = tokens(1)[0]
    providers = {name: Scripted({token: Answer(Outcome.DELIVERED)}) for name in order}
    devices = [Device(name, token) for name in order]
    job = leased()._replace(data=encode_data(Notification(user="anna", devices=devices, title="Hello")))
    settled = asyncio.run(send_now(Sender(providers, BACKOFF), job, CATEGORY))
    assert isinstance(settled, Settlement)
    assert settled.route == "apns+fcm"


def test_the_count_stands_in_the_text() -> None:
    """{count} becomes how many it stands for where the category collapses; no other brace is touched, nowhere else."""
    title, body = "{count} of {0.__class__}", "{{count}} {COUNT} {count!r}"
    data = encode_data(Notification(user="anna", devices=[Device("apns", tokens(1)[0])], title=title, body=body))
    for collapses, told in (("collapse", ("3 of {0.__class__}", "{3} {COUNT} {count!r}")), ("queue", (title, body))):
        category = replace(CATEGORY, when_blocked=collapses)
        _, provider = settle(leased(data=data)._replace(stands_for=3), Answer(Outcome.DELIVERED), category=category)
        (sent,) = provider.asked
        assert (sent.notification.title, sent.notification.body) == told


def test_an_expired_one_is_not_sent() -> None:
    """No time left: nothing is sent; expired, or delivered where a device took it before."""
    settled, provider = settle(leased(left_us=0), Answer(Outcome.DELIVERED))
    assert (settled.state, settled.word, settled.reached) == ("failed", "expired", False)
    assert not provider.asked
    job = leased(2, left_us=-5, answered=b'{"1": "delivered"}')
    settled, provider = settle(job, Answer(Outcome.DELIVERED), Answer(Outcome.DELIVERED))
    assert settled.state == "delivered"
    assert not provider.asked


async def test_what_is_left_goes_with_it() -> None:
    """The provider learns how long the notification is worth delivering, and begins nothing after that."""
    sender = Sender({"apns": (provider := Scripted({tokens(1)[0]: Answer(Outcome.DELIVERED)}))}, BACKOFF)
    leased_at = asyncio.get_running_loop().time() - 0.5
    for left_us in (1_000_000, 500_000_000):
        await send(sender, leased(left_us=left_us), CATEGORY, leased_at)
    soon, later = provider.asked
    assert soon.send_by == leased_at + 1
    assert later.send_by == leased_at + 10, "the lease ends first"
    assert 0 < (soon.ttl_us or 0) <= 500_000


@pytest.mark.parametrize(("other", "state"), [(Outcome.DELIVERED, "delivered"), (Outcome.UNSENT, "failed")])
def test_what_expired_with_its_provider_has_expired(other: Outcome, state: str) -> None:
    """What could not go before its expiry ends as expired, its permit unspent; delivered where a device took it."""
    job, observer = leased(2, left_us=50_000), Observer()
    slow = Slow({tokens(2)[0]: Answer(Outcome.UNSENT, reason="TooLate"), tokens(2)[1]: Answer(other)})
    settled = asyncio.run(send_now(Sender({"apns": slow}, BACKOFF), job, CATEGORY, observer))
    assert isinstance(settled, Settlement)
    assert (settled.state, settled.reached) == (state, other is Outcome.DELIVERED)
    assert settled.word == ("delivered" if other is Outcome.DELIVERED else "expired")
    assert observer.not_sent_to_anybody == 1, "another is to probe the route"


def test_a_poisonous_one_is_not_tried() -> None:
    """A job on which several workers died is failed unsent, and says so."""
    settled, provider = settle(leased(crashes=MAX_CRASHES), Answer(Outcome.DELIVERED))
    assert settled.state == "failed"
    assert settled.poison
    assert "poison" in reason(settled)
    assert not provider.asked
    settled, _ = settle(leased(crashes=MAX_CRASHES - 1), Answer(Outcome.DELIVERED))
    assert settled.state == "delivered"


def test_a_poisonous_one_that_a_device_took_is_delivered() -> None:
    """The workers died on the rest of it, which no device gets any more."""
    settled, provider = settle(leased(crashes=MAX_CRASHES, answered=b'{"0": "delivered"}'), Answer(Outcome.DELIVERED))
    assert (settled.state, settled.word, settled.poison, provider.asked) == ("delivered", "delivered", True, [])


def test_the_longest_wait_asked_for_is_kept() -> None:
    """Of several Retry-After the longest holds, and the backoff comes on top where an attempt was spent."""
    answers = (Answer(Outcome.RETRY, retry_after_us=90_000_000), Answer(Outcome.RETRY, retry_after_us=5))
    settled, _ = settle(leased(2), *answers)
    assert 90_000_000 + 11_250_000 <= int(settled.detail) <= 90_000_000 + 22_500_000
    settled, _ = settle(leased(), Answer(Outcome.RETRY, retry_after_us=5))
    assert 1_000_005 <= int(settled.detail) <= 2_000_005


@pytest.mark.parametrize("asked_s", [1, 60, 900])
def test_what_was_told_to_come_back_does_not_come_back_at_once(asked_s: int) -> None:
    """A wait that a provider asks for is a least one, spread by its own size, and more with each attempt."""
    backoff = Backoff(2_000_000, 600_000_000)
    spreads = []
    for attempt in (1, 2, 3):
        waits = [backoff.wait_us(attempt, asked_s * 1_000_000) for _ in range(200)]
        assert min(waits) >= asked_s * 1_000_000
        assert len(set(waits)) > 150
        spreads.append(max(waits) - asked_s * 1_000_000)
    assert spreads == sorted(spreads)
    assert spreads[0] >= asked_s * 1_000_000 // 8
    assert spreads[-1] <= 600_000_000


@pytest.mark.parametrize("attempt", [1, 2, 5, 9, 40, 10_000])
def test_backoff_doubles_up_to_its_most(attempt: int) -> None:
    """The wait is between a half and the whole of first doubled by attempt, and never over the most."""
    backoff = Backoff(2_000_000, 600_000_000)
    ceiling = min(600_000_000, 2_000_000 * 2 ** min(attempt - 1, 40))
    assert all(ceiling // 2 <= backoff.wait_us(attempt) <= ceiling for _ in range(50))


@pytest.mark.parametrize(
    "answer",
    [RuntimeError("driver"), ("delivered", 200), Answer("delivered")],  # type: ignore[arg-type]
    ids=["an exception", "a tuple", "a word"],
)
def test_what_is_no_answer_is_an_unknown(answer: Any) -> None:
    """It may have been sent, so the permit stays spent; its route has the slot back."""
    limit = RouteLimit(max_in_flight=10, timeout_s=1.0)
    providers: Any = {"apns": Scripted({tokens(1)[0]: answer})}
    sender = Sender(providers, BACKOFF, capacity=Capacity({"apns": limit}))
    made = asyncio.run(send_now(sender, leased(), CATEGORY))
    settled = made.settlement if isinstance(made, Unproven) else made
    assert (settled.state, settled.reached) == ("later", True)
    assert limit.in_flight == 0


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        (Answer(Outcome.DELIVERED), True),
        (Answer(Outcome.UNSENT, 401, "UNAUTHENTICATED"), True),
        (Answer(Outcome.UNKNOWN, reason="Timeout"), True),
        (Answer(Outcome.UNKNOWN, reason="ConnectionLost"), False),
        (Answer(Outcome.UNSENT, reason="Timeout"), False),
        (Answer(Outcome.UNSENT, reason="Unreachable"), False),
        (Answer(Outcome.REJECTED, reason="PayloadTooLarge"), False),
        (RuntimeError("driver"), False),
    ],
)
def test_only_what_a_provider_was_asked_says_how_long_it_takes(answer: Answer | Exception, counts: bool) -> None:
    """An address where nobody listens refuses within a millisecond: in an outage the provider would look quick."""
    sender = Sender({"apns": Scripted({tokens(1)[0]: answer})}, BACKOFF)
    asyncio.run(send_now(sender, leased(), CATEGORY))
    assert [len(times) for times in sender.numbers.answered.values()] == [1] * counts


def test_the_app_is_the_notifications_or_else_the_categorys() -> None:
    """Each device goes by its platform and the app: the notification's own, else the category's, else the unnamed."""
    device = Device("apns", tokens(1)[0])
    for own, of_category, expected in (
        (None, None, "apns"),
        (None, "driver", "apns/driver"),
        ("rider", "driver", "apns/rider"),
        (None, "kitchen", None),  # no provider here: FAULT, given back
        ("kitchen", None, None),  # an app of the notification's own choice: it is the notification's own fault
    ):
        providers = {
            by: Scripted({device.token: Answer(Outcome.DELIVERED)}) for by in ("apns", "apns/driver", "apns/rider")
        }
        job = leased(data=encode_data(Notification(user="anna", devices=[device], title="Hello", app=own)))
        sender = Sender(providers, Backoff(1, 1))
        settled = asyncio.run(send(sender, job, replace(CATEGORY, app=of_category), 1e9))
        assert [by for by, provider in providers.items() if provider.asked] == ([expected] if expected else [])
        waits = "later" if own else "backlog"
        assert (settled.state, settled.reached) == (("delivered", True) if expected else (waits, False))


def test_each_dead_token_is_told_once() -> None:
    """Only what is called dead is told, with the app and the provider's time; what was answered before is not again."""
    dead = Answer(Outcome.DEAD_TOKEN, 410, "Unregistered", gone_at_us=7)
    others = [Answer(outcome) for outcome in Outcome if outcome is not Outcome.DEAD_TOKEN]
    settled, _ = settle(leased(1 + len(others)), dead, *others)
    device = Device("apns", tokens(1)[0])
    assert settled.state == "later"
    assert settled.gone == (DeadToken(device, None, "Unregistered", 7),)
    assert device.token not in repr(settled)
    settled, provider = settle(
        leased(2, attempts=1, answered=b'{"0": "dead_token"}'), dead, replace(dead, gone_at_us=None)
    )
    assert [dispatch.device.token for dispatch in provider.asked] == [tokens(2)[1]]
    assert [told.device.token for told in settled.gone] == [tokens(2)[1]]
    settled, _ = settle(leased(), Answer(Outcome.REJECTED, 400, "BadDeviceToken"))
    assert settled.gone == ()


def test_another_users_job_is_refused() -> None:
    """Where the meta, by which it was limited, names another user than the message, nothing is sent."""
    settled, provider = settle(leased(user="berta"), Answer(Outcome.DELIVERED))
    assert settled.state == "failed"
    assert "user" in reason(settled)
    assert not provider.asked


def test_what_is_told_of_a_malformed_one_is_short() -> None:
    """Somebody else has named the field, or the category, by megabytes."""
    for wrong, told in (({"k" * 1_000_000: 1}, f"{'k' * 256}: is"), ({"category": "k" * 1_000_000}, "category: 'kkk")):
        data = json.dumps(["notifier.deliver", None, [], {"user": "42", "devices": [], **wrong}]).encode()
        with capture_logs() as logs:
            settle(leased(data=data))
        (line,) = logs
        assert line["reason"].startswith(told)
        assert len(line["reason"]) < 2_000


def test_another_function_is_not_ours() -> None:
    """A job of another function is handed back, whatever else it carries."""
    with pytest.raises(NotOursError):
        settle(
            leased(data=json.dumps(["math.factorial", None, [3], {}]).encode(), left_us=-1), Answer(Outcome.DELIVERED)
        )


def test_a_digest_has_the_text_of_its_category() -> None:
    """What stands for several goes with the category's text, and what stands for itself alone with its own."""
    category = replace(CATEGORY, when_blocked="digest", digest=Digest(3, 1, None, "{count} new"))
    for count, told in ((1, ("Hello", None)), (4, (None, "4 new"))):
        _, provider = settle(leased()._replace(stands_for=count), Answer(Outcome.DELIVERED), category=category)
        (sent,) = provider.asked
        assert (sent.notification.title, sent.notification.body) == told


@pytest.mark.parametrize(
    ("device", "digest", "fields"),
    [
        (Device("hms", "h" * 32), Digest(3, 1, "{count} new", None), {"body": "Anna: Hi"}),
        (
            Device("apns", "ab" * 32),
            Digest(3, 1, "{count} new", "Open the app to read them all."),
            {"data": {"of": "x" * 4030}},
        ),
        (
            Device("apns", "ab" * 32),
            Digest(3, 1, "{count} new", None),
            {"title": None, "data": {"n": 1}, "apns": {"push_type": "background"}},
        ),
    ],
)
def test_where_a_digest_cannot_be_sent_the_newest_goes_as_itself(
    device: Device, digest: Digest, fields: dict[str, Any]
) -> None:
    """The others have ended as superseded, so a refused digest would lose all that had gathered."""
    newest = Notification(user="anna", **{"title": "Hello, {count}", "devices": (device,)} | fields)
    category = replace(CATEGORY, when_blocked="digest", digest=digest)
    provider = Scripted({device.token: Answer(Outcome.DELIVERED)})
    sender = Sender({"apns": provider, "hms": provider}, BACKOFF)
    job = leased(data=encode_data(newest), stands_for=4)
    asyncio.run(send_now(sender, job, category))
    (sent,) = provider.asked
    assert sent.notification == replace(newest, title=newest.title and "Hello, 4")


class Open(Scripted):
    """A provider whose answer comes when the test lets it; `closed` tells whether it was closed before that."""

    def __init__(self) -> None:
        super().__init__({})
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()

    async def send(self, dispatch: Dispatch) -> Answer:
        self.asked.append(dispatch)
        return await self.answer

    async def close(self) -> None:
        self.closed.set()


async def test_a_provider_that_is_replaced_ends_its_sends() -> None:
    """What is under way ends by the old provider, what follows goes by the new; the old one is closed after that."""
    old, new = Open(), Open()
    sender = Sender({"apns": old}, BACKOFF, lease_s=0.05, answer_s=0.05)
    until = asyncio.get_running_loop().time() + 60
    under_way = asyncio.create_task(send(sender, leased(), CATEGORY, until))
    await asyncio.sleep(0)
    sender.replace({"apns": new})
    later = asyncio.create_task(send(sender, leased(), CATEGORY, until))
    await asyncio.sleep(0)
    assert (len(old.asked), len(new.asked), old.closed.is_set()) == (1, 1, False)
    for provider in (old, new):
        provider.answer.set_result(Answer(Outcome.DELIVERED))
    assert [(await task).word for task in (under_way, later)] == ["delivered", "delivered"]
    await old.closed.wait()
    assert not new.closed.is_set()


async def test_who_ends_closes_the_replaced_too() -> None:
    """A worker that ends waits for nothing: the old provider and the new one are closed at once."""
    old, new = Open(), Open()
    sender = Sender({"apns": old}, BACKOFF, lease_s=3600)
    sender.replace({"apns": new})
    await sender.close()
    assert old.closed.is_set()
    assert new.closed.is_set()
