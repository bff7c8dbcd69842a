"""Whatever stands in Redis where a job should be: no worker ends by it, good messages go on, and nothing is lost."""

import json
import zlib
from typing import Any, Final

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier import Notifier
from notifier.notification.job import encode_reason
from notifier.operations.audit.audit import Audit
from notifier.rules.zones import check_zone
from notifier.settings import parse_settings
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import apns, note
from tests.property.amount import examples
from workers import PushWorker

LANES: Final = ("urgent", "default", "bulk")
HOUR_US: Final = 3_600_000_000
RATES: Final[dict[str, Any]] = {
    "user": {"windows": ["1000/1h"], "quiet_hours": "none"},
    "users": {"slow": {"windows": ["1/1h"]}},
    "categories": {
        "default": {"lane": "default"},
        "chat": {"lane": "urgent", "when_blocked": "collapse"},
        "marketing": {"lane": "bulk"},
        "night": {"lane": "bulk", "quiet_hours": "03:00-03:01"},
    },
    "providers": {"apns": {"client": "console", "timeout": "1s"}, "fcm": {"client": "console", "timeout": "1s"}},
    "worker": {"lease": "3s"},
}
NIGHT: Final = b'{"user": "anna", "category": "night", "zone": "%b"}'
OURS: Final = (
    *("push_order", "push_permit", "push_begun", "push_deadline", "push_attempts", "push_crashes", "push_zone"),
    *("push_since", "push_answered", "push_outcome", "push_targets", "push_collapse", "push_count", "push_by"),
    *("push_reason", "push_arriving", "push_gather", "push_rq_job", "push_seen", "push_again"),
)
OF_RQ: Final = (
    *(
        "created_at",
        "enqueued_at",
        "started_at",
        "status",
        "timeout",
        "ttl",
        "result_ttl",
        "failure_ttl",
        "description",
    ),
    *(
        "worker_name",
        "retries_left",
        "retry_intervals",
        "dependency_ids",
        "group_id",
        "success_callback_name",
        "webhooks",
    ),
)

odd_bytes = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([b"", b"0", b"-1", b"nan", b"inf", b"1e400", b"0x10", b"canceled", b"queued", b"started", b"\xff"]),
    st.integers(-(10**20), 10**20).map(lambda n: b"%d" % n),
)
odd_text = st.one_of(
    st.text(max_size=12), st.sampled_from(["\ud800", "anna", "slow", "Europe/Berlin", "../..", "\x00"])
)
odd_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | odd_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd_text, inner, max_size=3),
    max_leaves=6,
)
NAMES: Final = (
    "user",
    "devices",
    "title",
    "category",
    "priority",
    "expires_in",
    "collapse_id",
    "zone",
    "\ud800",
    "data",
)


def a_payload(user: str) -> dict[str, Any]:
    return {"user": user, "devices": [{"platform": "apns", "token": apns(user).token}], "title": "hostile"}


kwargs_ = st.one_of(
    st.sampled_from([a_payload("anna"), a_payload("slow")]),
    st.builds(
        lambda good, odd: {**good, **odd},
        st.just(a_payload("anna")),
        st.dictionaries(st.sampled_from(NAMES), odd_json, max_size=2),
    ),
    odd_json,
)
data = st.one_of(
    st.builds(lambda kwargs: json.dumps(["notifier.deliver", None, [], kwargs]).encode(), kwargs_),
    st.builds(lambda value: json.dumps(value).encode(), odd_json),
    st.just(b'["nowhere.at_all", null, [], {}]'),
    st.binary(max_size=30),
)
packed = st.one_of(data, data.map(zlib.compress))
steering = st.one_of(
    st.builds(
        lambda user, more: json.dumps({"user": user, **more}).encode(),
        st.sampled_from(["anna", "slow", "\ud800"]),
        st.dictionaries(st.sampled_from(NAMES[3:]), odd_json, max_size=2),
    ),
    st.builds(lambda value: json.dumps(value).encode(), odd_json),
    st.just(b'{"user": "anna", "category": "default"}'),
    st.builds(
        lambda zone: json.dumps({"user": "anna", "category": "night", "zone": zone}).encode(),
        st.sampled_from(["Europe/Berlin", "nowhere", "../../etc/passwd", "\x00", "\ud800", ""]),
    ),
    st.just(b'{"user": "anna", "category": "chat", "collapse_id": "\xff"}'),
    st.binary(max_size=30),
)
hashes = st.builds(
    lambda data, meta, origin, odd: {
        k: v for k, v in {b"data": data, b"meta": meta, b"origin": origin, **odd}.items() if v is not None
    },
    st.none() | packed,
    st.none() | steering,
    st.none() | st.sampled_from([b"default", b"urgent", b"nowhere"]) | odd_bytes,
    st.dictionaries(st.sampled_from([name.encode() for name in OURS + OF_RQ]), odd_bytes, max_size=4),
)
job_ids = st.one_of(
    st.from_regex(rb"\A[a-z]{1,8}\Z"),
    st.binary(max_size=12),
    st.text(max_size=8).map(lambda t: t.encode("utf-8", "replace")),
)
# The key of a job may hold something else: RQ keeps sets beside its jobs, rq:job:<id>:dependents.
jobs = st.tuples(
    job_ids, st.sampled_from(LANES), st.one_of(hashes, hashes, hashes, st.sampled_from(["set", "nothing"]))
)


class InProcess(PushWorker):
    """A worker without what takes time and serves no job: the thread that hears commands, and signals."""

    def subscribe(self) -> None:
        pass

    def unsubscribe(self) -> None:
        pass

    def _install_signal_handlers(self) -> None:
        pass


@pytest.fixture(scope="module")
def rates(redis_server: EmbeddedRedis) -> Any:
    return parse_settings(json.dumps({"redis": {"url": redis_server.url}, **RATES}))


def put(redis: Redis, job_id: bytes, lane: str, content: dict[bytes, bytes] | str) -> None:
    key = b"rq:job:" + job_id
    if redis.exists(key):
        return
    if isinstance(content, dict) and content:
        redis.hset(key, mapping=content)  # type: ignore[arg-type]
    elif content == "set":
        redis.sadd(key, "a")
    redis.rpush(f"rq:queue:{lane}", job_id)


def work(redis: Redis, rates: Any) -> None:
    worker = InProcess(list(LANES), name="hostile", connection=redis, settings=rates)
    worker.work(burst=True, logging_level="CRITICAL")


def where(redis: Redis, job_id: bytes) -> str:
    """In which one of the ways in which a job may go on, or have ended, this one is; '' for none."""
    key = b"rq:job:" + job_id
    if redis.zscore("notifier:delivered", job_id) is not None:
        return "delivered"
    status, origin = redis.hmget(key, "status", "origin")
    waits = any(redis.zscore(line, job_id) is not None for line in redis.scan_iter("notifier:backlog:*"))
    if waits or redis.zscore("notifier:later", job_id) is not None:
        return "waits"
    for registry in (b"failed", b"canceled", b"scheduled", b"finished", b"deferred"):
        if redis.zscore(b"rq:%s:%s" % (registry, origin or b""), job_id) is not None:
            return registry.decode()
    try:
        job_id.decode()
    except UnicodeDecodeError:  # RQ's tools cannot read a registry in which it stands
        return "failed" if status == b"failed" and redis.ttl(key) > 0 else ""
    return ""


@settings(max_examples=examples(60), phases=[Phase.explicit, Phase.reuse, Phase.generate])  # each starts a worker
@given(hostile=st.lists(jobs, min_size=1, max_size=4))
@example(
    hostile=[(b"x", "default", {b"data": b'["notifier.deliver", null, [], {"\\ud800": 1}]', b"origin": b"default"})]
)
@example(hostile=[(b"\xff\xfe", "default", {b"data": b"1", b"origin": b"default"})])
@example(
    hostile=[
        (b"x", "default", {b"data": b"1", b"origin": b"nowhere", b"meta": b'{"user": "anna", "category": "default"}'})
    ]
)
@example(hostile=[(b"x", "bulk", {b"data": b"1"})])
@example(
    hostile=[(b"", "bulk", {b"data": b"1", b"meta": b'{"user": "anna", "category": "default"}', b"origin": b"bulk"})]
)
@example(hostile=[(b"x", "urgent", {b"meta": b'{"user": "anna", "category": "default"}'})])
@example(hostile=[(b"x:dependents", "default", "set")])
@example(
    hostile=[
        (name, "bulk", {b"data": b"1", b"origin": b"bulk", b"meta": NIGHT % zone})
        for name, zone in ((b"x", b"Europe/Berlin"), (b"y", b"Nowhere/At-all"), (b"z", b"z" * 100_000))
    ]
)
def test_no_content_ends_a_worker(redis: Redis, rates: Any, hostile: list[tuple[bytes, str, Any]]) -> None:
    """Jobs of any bytes in any field, of any id and origin: the worker works on to its end, what is good is delivered,
    and each of the others is in one of the states that a job may be in."""
    redis.flushdb()
    producer = Notifier(redis, rates)
    good = [producer.send(note("good", category=category)) for category in ("default", "chat", "marketing")]
    for job_id, lane, content in hostile:
        put(redis, job_id, lane, content)
    good += [producer.send(note("good", category=category)) for category in ("default", "chat", "marketing")]
    there = {job_id: redis.type(b"rq:job:" + job_id) == b"hash" for job_id, _, _ in hostile}
    work(redis, rates)
    assert [job_id for job_id in good if redis.zscore("notifier:delivered", job_id) is None] == []
    assert {lane: redis.llen(f"rq:queue:{lane}") for lane in LANES} == dict.fromkeys(LANES, 0)
    assert redis.zcard("notifier:leases") == 0
    for zone in redis.hkeys("notifier:zones"):
        check_zone(zone.decode())  # what jobs name besides is not kept
    lost = [job_id for job_id, was in there.items() if was and not where(redis, job_id)]
    assert [(job_id, redis.hgetall(b"rq:job:" + job_id)) for job_id in lost] == []
    audit = Audit(redis, lease_us=3_000_000)
    found = [str(finding) for finding in audit.findings()]
    assert found == []


@given(st.text())
@example("\ud800")
def test_any_reason_can_be_stored(reason: str) -> None:
    """A reason is stored as RQ reads it, whatever a job's field or a provider's answer put into it."""
    from rq.results import Result  # noqa: PLC0415 - no other test here needs it

    payload = {b"type": b"2", b"exc_string": encode_reason(reason).encode()}
    restored = Result.restore("job", "1-0", payload, connection=None)  # type: ignore[arg-type]
    assert restored.exc_string is not None
    if reason.isascii() and len(reason) < 100:
        assert restored.exc_string == reason
