"""What is sent is nobody's business: neither a log, nor a reason, nor a page shows a token or a text."""

from pathlib import Path

from rq.registry import FailedJobRegistry

from notifier.simulators.wire import Reply
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.serve_rig import TOKEN, serving
from tests.harness.support import Simulators, apns, client_of, ends, fcm, note, notifier, queue, worker, write_config

SECRET = "what-nobody-else-reads"
PATHS = ("/", "/user?id={user}", "/job?id={job}", "/problems", "/log", "/routes", "/api/v1/jobs?id={job}")
PATHS_OF_USER = ("/api/v1/users?id={user}", "/api/v1/problems", "/metrics")


def test_no_token_and_no_text_is_told(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """Delivered, rejected, dead, failed and cancelled: the worker logs all that it can, and each page is looked at."""
    with Simulators(tmp_path / "simulators") as simulators:
        told, names, tokens = tell(tmp_path, redis_server.url, simulators)
    assert all(name in told for name in names), "there is something to look through"
    said = {f"{word}-{SECRET}" for word in ("title", "body", "value")}
    assert [secret for secret in said | tokens if secret in told] == []


def tell(tmp_path: Path, url: str, simulators: Simulators) -> tuple[str, set[str], set[str]]:
    """Return all that is told of some notifications, their users' names, and their tokens."""
    config = write_config(tmp_path, url, simulators.providers(), log={"format": "json", "level": "debug"})
    replies = {
        "delivered": [Reply(200)],
        "rejected": [Reply(400, "PayloadEmpty")],
        "dead": [Reply(410, "Unregistered")],
        "refused": [Reply(403, "Forbidden")],
    }
    devices = {name: (simulators.answer(apns(name), *of), fcm(name)) for name, of in replies.items()}
    with notifier(config) as producer, client_of(config) as redis, serving(config, TOKEN) as ask:
        ids = {}
        for name, both in devices.items():
            text = {"body": f"body-{SECRET}", "data": {"key": f"value-{SECRET}"}}
            ids[name] = producer.send(note(name, f"title-{SECRET}", *both[:1], **text))
        gone = producer.send(note("gone", f"title-{SECRET}", fcm("gone")))
        assert producer.cancel(gone) == "cancelled"
        with worker(config) as one:
            for name, state in (("delivered", "delivered"), ("rejected", "rejected"), ("dead", "rejected")):
                ends(producer, ids[name], state)
            reader = ask.with_token()
            pages = [
                reader(path.format(user=user, job=job))[1]
                for user, job in ids.items()
                for path in (*PATHS, *PATHS_OF_USER)
            ]
        failed = FailedJobRegistry(queue=queue(redis))
        reasons = [redis.hgetall(f"rq:job:{each}").get(b"exc_info", b"") for each in failed.get_job_ids()]
        results = [part for key in redis.scan_iter("rq:results:*") for part in redis.xrange(key)]  # type: ignore[arg-type]
    tokens = {device.token for both in devices.values() for device in both}
    return "\n".join([one.log, *pages, *map(repr, reasons), *map(repr, results)]), set(ids), tokens
