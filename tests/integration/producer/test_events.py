"""The events: how each notification ended is told to each group and to the webhook; where nobody asks, nothing is."""

import asyncio
import hashlib
import hmac
import http.server
import json
import ssl
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest
from redis import Redis
from redis.backoff import ExponentialBackoff
from rq.job import Job
from rq.serializers import JSONSerializer
from structlog.testing import capture_logs

from notifier import AsyncNotifier, InvalidNotificationError, Record, SettingsError, Status
from notifier.producer.events import Outcome
from notifier.queue import backlogs, calls
from notifier.queue.retention import Retention
from notifier.rules.category import LANES
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.server import webhook
from notifier.server.webhook import Webhook
from notifier.settings import load_settings
from notifier.simulators.certificates import make_certificates
from notifier.simulators.wire import Reply
from notifier.store.partitions import Partition, Partitions
from notifier.testing import FakeNotifier
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import Simulators, ends, eventually, fcm, note, notifier, worker, write_config
from tests.harness.take import take

OUTCOMES = get_args(Outcome)
AGAIN = (500, 503, 408, 425, 429, 302)  # the answers after which the webhook posts the same events again
SECTIONS = {"events": {"keep": "1d"}}  # of `config`
RULES = {
    "events": {"keep": "1d"},
    "user": {"windows": ["2/1h"]},
    "categories": {
        "default": {"lane": "default"},
        "chat": {"lane": "urgent", "when_blocked": "collapse"},
        "news": {"lane": "bulk", "when_blocked": "drop"},
    },
}


def test_each_end_is_told(tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis) -> None:
    """Delivered, rejected, expired, superseded, dropped and cancelled: each once, with its reason, ref and job."""
    with Simulators(tmp_path / "sim") as simulators:
        config = write_config(tmp_path, redis_server.url, simulators.providers(), **RULES)
        dead = simulators.answer(fcm("dead"), Reply(404, "UNREGISTERED"))
        with notifier(config) as producer, worker(config):
            delivered = producer.send(note("ann", "1", fcm("ann"), data={"ref": "order-1"}))
            rejected = producer.send(note("bob", "1", dead))
            ends(producer, delivered, "delivered")
            ends(producer, rejected, "rejected")
            ends(producer, producer.send(note("ann", "2", fcm("ann"))), "delivered")
            old = producer.send(note("ann", "3", fcm("ann"), category="chat", collapse_id="c"))
            eventually(lambda: producer.status(old).state == "waiting", "one that waits")
            new = producer.send(note("ann", "4", fcm("ann"), category="chat", collapse_id="c"))
            ends(producer, old, "superseded")
            dropped = producer.send(note("ann", "5", fcm("ann"), category="news"))
            ends(producer, dropped, "dropped")
            expired = producer.send(note("ann", "6", fcm("ann"), expires_in=0.2))
            ends(producer, expired, "expired")
            assert producer.cancel(new) == "cancelled"
            events = list(producer.events())
            records = {record.job_id: record for user in ("ann", "bob") for record in producer.history(user)}
            nothing = producer.history("ann", timedelta()) + producer.history("ann", timedelta.min)
            status = producer.status(delivered, "ann")
    found = {each.job_id: each for each in events}
    counted = {word.decode(): int(n) for word, n in redis.hgetall("notifier:stats").items()}
    assert Counter(each.outcome for each in events) == {word: counted[word] for word in counted if word in OUTCOMES}
    others = {job_id: each.outcome for job_id, each in found.items() if each.outcome != "delivered"}
    assert others == {
        rejected: "rejected",
        old: "superseded",
        new: "cancelled",
        dropped: "dropped",
        expired: "expired",
    }
    assert sum(each.outcome == "delivered" for each in found.values()) == 2
    assert (found[delivered].ref, found[delivered].category, found[delivered].user) == ("order-1", "default", "ann")
    assert found[old].superseded_by == new
    # The history has one record of each, too, with what the providers answered.
    assert {job_id: record.outcome for job_id, record in records.items()} == {e.job_id: e.outcome for e in events}
    assert records[old].superseded_by == new
    (refused,) = records[rejected].replies
    assert (refused.status, refused.outcome, refused.reason) == (404, "dead_token", "UNREGISTERED")
    assert (records[delivered].replies[0].status, records[delivered].worker) == (200, "worker")
    assert (status and status.record) == records[delivered]
    assert "UNREGISTERED" in found[rejected].reason
    assert found[expired].reason
    assert found[new].ref is None
    assert nothing == []


def test_ends_that_rq_brings_about(config: Path, redis: Redis) -> None:
    """What RQ's own tools cancel, delete or enqueue once more has its event, too, each with its user."""
    keep_us = 10**12
    with notifier(config) as producer:
        cancelled = producer.send(note("ann", "1", fcm("ann")))
        Job.fetch(cancelled, connection=redis, serializer=JSONSerializer).cancel()
        sweep = backlogs.sweep(LANES, Retention(10**12, events_us=keep_us), lease_us=10**9)
        assert run(redis, sweep)[0] == 1
        deleted = settle_one(redis, config, keep_us, "bob", deletes=True)
        assert [(each.job_id, each.user, each.outcome) for each in producer.events()] == [
            (cancelled, "ann", "cancelled"),
            (deleted, "bob", "delivered"),
        ]


def settle_one(redis: Redis, config: Path, keep_us: int, user: str = "ann", *, deletes: bool = False) -> str:
    """One notification that is delivered by hand; returns its id. deletes: its job goes while it is in flight."""
    rules = RuleTable(load_settings(config, {}).policies())
    with notifier(config) as producer:
        job_id = producer.send(note(user, "1", fcm(user)))
    keep = Retention(10**12, 10**9, 10**12, events_us=keep_us)
    worker = calls.Worker(name="w", lanes=LANES, lease_us=10**9, keep=keep)
    (leased,) = take(redis, worker, calls.Room(9), rules).leased
    done = calls.Settlement(
        leased.job_id, leased.permit, user, "default", reached=True, state="delivered", word="delivered"
    )
    if deletes:
        redis.delete(f"rq:job:{job_id}")
    assert run(redis, calls.settle([done], rules, worker)) == [True]
    return job_id


def test_nothing_is_written_where_nobody_asks(tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis) -> None:
    """Off by default: no stream, not one command more, and reading says what to write into the configuration."""
    config = write_config(tmp_path, redis_server.url)

    def commands(keep_us: int, user: str) -> int:
        redis.config_resetstat()
        settle_one(redis, config, keep_us, user)
        stats = redis.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("xadd", "hget", "pexpire"))

    off = commands(0, "one")
    assert not redis.exists("notifier:events")
    assert commands(10**9, "two") - off == 3
    with notifier(config) as producer, pytest.raises(SettingsError, match=r"events\.keep is 0s"):
        producer.events()


def test_events_are_given_as_feedback_is(config: Path, redis: Redis) -> None:
    """Each group is given each event; one over which a loop broke is given again; the acknowledged are not."""
    keep_us = 86_400_000_000
    ids = [settle_one(redis, config, keep_us, f"u{n}") for n in range(3)]
    with notifier(config) as producer:
        for ended in producer.events("a", "one"):
            assert ended.job_id == ids[0]
            break
        assert [each.job_id for each in producer.events("a", "one")] == ids
        assert list(producer.events("a", "one")) == []
        assert [each.job_id for each in producer.events("b")] == ids
    assert 0 < redis.pttl("notifier:events") <= keep_us // 1000


async def _read(config: Path) -> list[str]:
    async with AsyncNotifier.from_config(config, {}) as producer:
        return [each.job_id async for each in producer.events()]


def test_asyncio_and_the_fake_have_events(config: Path, redis: Redis) -> None:
    """AsyncNotifier and FakeNotifier give the same."""
    job_id = settle_one(redis, config, 10**12)
    assert asyncio.run(_read(config)) == [job_id]
    with FakeNotifier(config) as fake:
        sent = fake.send(note("ann", "1", fcm("ann"), data={"ref": "r"}))
        fake.advance("1s")
        assert [(each.job_id, each.outcome, each.ref) for each in fake.events()] == [(sent, "delivered", "r")]
        assert list(fake.events()) == []


async def _history(config: Path, job_id: str) -> tuple[list[Record], Status | None]:
    async with AsyncNotifier.from_config(config, {}) as producer:
        return await producer.history("ann", timedelta(hours=1)), await producer.status(job_id, "ann")


def test_asyncio_and_the_fake_have_a_history(config: Path, redis: Redis) -> None:
    """AsyncNotifier and FakeNotifier tell what became of each, and what held it back; `keep: 0s` keeps nothing."""
    with notifier(config) as producer:
        job_id = producer.send(note("ann", "1", fcm("ann")))
        assert producer.cancel(job_id) == "cancelled"
    (record,), status = asyncio.run(_history(config, job_id))
    assert (record.job_id, record.outcome) == (job_id, "cancelled")
    assert (status and status.record) == record
    redis.flushall()
    config.write_text(config.read_text(encoding="utf-8") + "history: {keep: 0s}\n", encoding="utf-8")
    with notifier(config) as producer:
        job_id = producer.send(note("ann", "1", fcm("ann")))
        assert not redis.hexists(f"rq:job:{job_id}", "push_history")
        assert producer.cancel(job_id) == "cancelled"
        assert (producer.history("ann"), redis.keys("notifier:history:*")) == ([], [])
    with FakeNotifier(config) as fake:
        sent = fake.send(note("ann", "1", fcm("ann")))
        fake.advance("1s")
        assert [(each.job_id, each.outcome, each.user) for each in fake.history("ann")] == [(sent, "delivered", "ann")]
        assert fake.status(sent).record == fake.history("ann")[0]


@pytest.mark.parametrize("ref", [1, ["x"], "x" * 257])
def test_a_ref_is_text(config: Path, ref: Any) -> None:
    """What cannot stand in an event is refused where it is sent."""
    with notifier(config) as producer, pytest.raises(InvalidNotificationError, match=r"data\.ref"):
        producer.send(note("ann", "1", fcm("ann"), data={"ref": ref}))


class Receiver:
    """Takes what is posted. answers: the statuses, the last one repeats."""

    def __init__(self, *answers: int) -> None:
        self.posts: list[tuple[str, bytes]] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.posts.append((self.headers["Notifier-Signature"], body))
                self.send_response(answers[min(len(receiver.posts), len(answers)) - 1])
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?a=1"

    def jobs(self) -> list[str]:
        return [event["job_id"] for _, body in self.posts for event in json.loads(body)["events"]]


class Pauses:
    """In the place of the webhook's pauses, which get longer. asked: the number of failures before each."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def compute(self, failures: int) -> float:
        self.asked.append(failures)
        return 0.01


def test_the_webhook_pauses_longer_and_longer() -> None:
    """1 s, 2 s, 4 s, and a minute at most."""
    assert [webhook.BACKOFF.compute(n) for n in (0, 1, 2, 9, 999)] == [1, 2, 4, 60, 60]


@contextmanager
def posting(tmp_path: Path, url: str, redis: Redis, *answers: int) -> Iterator[tuple[Receiver, Webhook]]:
    receiver = Receiver(*answers)
    thread = threading.Thread(target=receiver.server.serve_forever)
    thread.start()
    (tmp_path / "secret").write_text("s3cret\n")
    hook = {"url": receiver.url, "secret_file": str(tmp_path / "secret")}
    settings = load_settings(write_config(tmp_path, url, events={"keep": "1d", "webhook": hook}), {})
    posts = Webhook(redis, settings.events.webhook, partial(settings.events.webhook.read_secret, {}))
    posts.start()
    try:
        yield receiver, posts
    finally:
        posts.stop()
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join()


def test_the_webhook_posts_though_a_partition_is_away(
    tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are looked at as often as ever: who waits longer and longer waits for all of them."""
    monkeypatch.setattr(webhook, "BACKOFF", ExponentialBackoff(cap=3_600, base=3_600))
    both = Partitions([Partition(n, 2, None, of) for n, of in enumerate((Redis(port=1, retry=None), redis))])
    with posting(tmp_path, redis_server.url, both, 200) as (receiver, _):
        for n in range(2):
            redis.xadd("notifier:events", {"job_id": f"job-{n}", "outcome": "delivered", "detail": "", "meta": "{}"})
            eventually(lambda n=n: receiver.jobs() == [f"job-{i}" for i in range(n + 1)], "the next post")


def test_the_webhook_repeats_until_it_is_taken(
    config: Path, tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event comes at least once, in order, signed by the secret of that moment; of 4xx three are repeated."""
    monkeypatch.setattr(webhook, "BACKOFF", pauses := Pauses())
    first = settle_one(redis, config, 10**12, "a")
    with posting(tmp_path, redis_server.url, redis, *AGAIN, 200, 400, 200) as (receiver, posts):
        eventually(lambda: posts.taken == 1, "the first")
        second = settle_one(redis, config, 10**12, "b")
        eventually(lambda: posts.refused == 1, "what is refused")
        (tmp_path / "secret").write_text("another\n")
        third = settle_one(redis, config, 10**12, "c")
        eventually(lambda: posts.taken == 2, "the third")
    assert pauses.asked == [*range(len(AGAIN))]
    assert receiver.jobs() == [first] * len(AGAIN) + [first, second, third]
    for secret, (signature, body) in zip([b"s3cret"] * (len(AGAIN) + 2) + [b"another"], receiver.posts, strict=True):
        at, made = (part.partition("=")[2] for part in signature.split(","))
        assert hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest() == made
        (event,) = json.loads(body)["events"]
        assert set(event) == {"event_id", "job_id", "user", "category", "outcome", "at"}
    left = redis.xpending("notifier:events", "webhook")
    assert left["pending"] == 0


@pytest.mark.parametrize(
    ("trusted", "shown", "refused"),
    [
        ("ca_file", "cert_file", None),
        ("ca_file", "wrong_name_file", ssl.SSLCertVerificationError),
        ("wrong_name_file", "cert_file", ssl.SSLCertVerificationError),
    ],
)
async def test_what_is_posted_by_tls_goes_to_whom_the_address_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: str, shown: str, refused: type[Exception] | None
) -> None:
    """An event tells of users: nobody gets it whose certificate the host does not trust, or who has another name."""
    made, asked = make_certificates(tmp_path), []
    monkeypatch.setenv("SSL_CERT_FILE", str(getattr(made, trusted)))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(getattr(made, shown), made.key_file)

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(receive, "127.0.0.1", 0, ssl=tls) as server:
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with nullcontext() if refused is None else pytest.raises(refused):
            assert await webhook.post(urlsplit(f"https://{host}"), b"{}", b"s3cret", 60) == 200
    heads = [head.split(b"\r\n")[:2] for head in asked]
    assert heads == ([] if refused else [[b"POST / HTTP/1.1", f"Host: {host}".encode()]])


def nested(depth: int) -> str:
    return '{"user":' * depth + "1" + "}" * depth


def told_up_to(redis: Redis) -> list[tuple[bytes, int]]:
    """Of each reader of the stream the last event that it has read, and how many of those it has not acknowledged."""
    return [(group["last-delivered-id"], group["pending"]) for group in redis.xinfo_groups("notifier:events")]


def test_what_cannot_be_read_holds_up_no_event(
    config: Path, tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis
) -> None:
    """What is no event is passed over, alone and among others; an event with any meta is told. So by the webhook."""
    odd = (
        {b"foo": b"bar"},
        {b"\xff": b"\xff"},
        {b"job_id": b"a", b"outcome": b"failed"},
    )
    newest = [redis.xadd("notifier:events", fields) for fields in odd][-1]
    metas = [
        "[" * 100_000,
        *map(nested, range(300, 1200, 100)),
        nested(3000),
        "[]",
        "9" * 5000,
        '{"user": 5}',
        "\\",
        "",
    ]
    with posting(tmp_path, redis_server.url, redis, 200) as (receiver, posts):
        eventually(lambda: told_up_to(redis) == [(newest, 0)], "what is no event")
        for meta in metas:
            detail = b64encode(b"no zlib")
            redis.xadd("notifier:events", {"job_id": "odd", "outcome": "failed", "detail": detail, "meta": meta})
        last = settle_one(redis, config, 10**12)
        eventually(lambda: posts.taken == len(metas) + 1, "all events")
    assert receiver.jobs() == ["odd"] * len(metas) + [last]
    with notifier(config) as producer:
        told = list(producer.events())
    assert [each.job_id for each in told] == receiver.jobs()
    assert {each.user for each in told} == {"", "5", "ann"}


def test_nothing_ends_the_webhook(
    config: Path, tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong, where Redis is read or where is posted, is logged, and tried again."""
    monkeypatch.setattr(webhook, "BACKOFF", pauses := Pauses())
    redis.set("notifier:events", "poison")
    with capture_logs() as logs, posting(tmp_path, redis_server.url, redis, 200) as (receiver, posts):
        eventually(lambda: len(pauses.asked) > 2, "the trouble with Redis")
        assert pauses.asked[:3] == [0, 1, 2]
        assert [line["event"] for line in logs] == ["events_not_read"], "it is told once"
        redis.delete("notifier:events")
        right, posts._url = posts._url, urlsplit("http://exa..mple.com/")
        last = settle_one(redis, config, 10**12)
        eventually(lambda: any(line["event"] == "webhook_failed" for line in logs), "the trouble with the address")
        posts._url = right
        eventually(lambda: posts.taken == 1, "the event")
    assert receiver.jobs() == [last]
