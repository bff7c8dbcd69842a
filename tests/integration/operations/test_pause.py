"""The commands pause and resume, and where a pause and `rq suspend` show: explain, stats, routes, metrics, the log."""

import json
import re
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from redis import Redis
from rq import Queue, SimpleWorker

from notifier.errors import RedisUnusableError
from notifier.notification.job import encode_reason
from notifier.operations.action_log import read_actions, record_action
from notifier.operations.ended_badly import MAX_READ
from notifier.operations.pause import MAX_REASON, MAX_WHO, PauseError, check_what, pause_it, resume_it
from notifier.settings import parse_settings
from notifier.store.partitions import Partition, Partitions
from notifier.store.published import publish, published_now, withdraw
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.serve_rig import TOKEN, Client, basic, serving
from tests.harness.support import eventually, fcm, note, notifier, worker, write_config
from tests.integration.conftest import Ran, Run


@pytest.fixture
def server(config: Path) -> Iterator[Client]:
    with serving(config, TOKEN) as client:
        yield client.with_token("anna")


def test_a_pause_shows_wherever_somebody_looks(run: Run, redis: Redis, server: Client) -> None:
    """Who, why and until when: in the list, in explain, stats and routes, as a metric, and in the log of actions."""
    done = run("pause", "category:chat", "--for", "1h", "--reason", "wrong text", "--who", "anna")
    assert done.status == 0
    assert "category:chat" in done.out
    assert run("pause", "route:fcm", "--who", "anna").status == 0
    explained = run("explain", "--user", "42", "--category", "chat").out
    assert "nothing goes now:" in explained
    assert "paused by anna: wrong text, until " in explained
    assert re.search(r"paused by anna: wrong text, until <time[^>]*>\d{4}-", server("/user?id=42&category=chat")[1])
    assert "fcm stopped since" in run("explain", "--user", "42").out
    now = json.loads(run("stats", "--json").out)["now"]
    assert [(each["what"], each["who"]) for each in now["pauses"]] == [("category:chat", "anna"), ("route:fcm", "anna")]
    stopped = run("routes")
    assert (stopped.status, "paused by anna" in stopped.out) == (1, True)
    metrics = server("/metrics")[1]
    assert 'notifier_paused{what="category:chat"} 1.0' in metrics
    assert 'notifier_route_state{kind="paused",route="fcm",state="stopped"} 1.0' in metrics
    assert [(each.who, each.action, each.of) for each in read_actions(redis, 9)] == [
        ("anna", "pause", "route:fcm"),
        ("anna", "pause", "category:chat"),
    ]
    assert run("resume", "category:chat") == Ran(0, "category:chat is resumed\n", "")
    assert run("resume", "category:chat") == Ran(1, "category:chat was not paused\n", "")
    assert [each.answer for each in read_actions(redis, 2)] == ["it was not paused", "resumed"]
    assert run("resume", "route:fcm").status == 0
    assert run("pause") == Ran(0, "nothing is paused\n", "")


def test_a_pause_is_one_short_line(run: Run, server: Client) -> None:
    """Whoever pauses stands in the history of each notification that it holds, and the reason among lines of ours."""
    name, reason = "a" * 20_000, f"wrong\nall is well {'b' * 20_000}"
    posted = server.post("/api/v1/pause", {"what": "all", "reason": reason}, Authorization=basic(TOKEN, name))
    assert posted[0] == 200
    assert run("pause", "lane:bulk", "--who", name, "--reason", reason).status == 0
    for each in json.loads(run("pause", "--json").out):
        assert each["who"] == "a" * MAX_WHO
        assert each["reason"] == f"wrong all is well {'b' * 20_000}"[:MAX_REASON]


def test_what_holds_in_some_partitions_is_written_down(redis: Redis) -> None:
    """Where a partition is away, what was done in the others is logged as well, and that it was not done everywhere.

    Who stops sending is told both.
    """
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    away = Redis(port=port, retry=None)
    both = Partitions([Partition(n, 2, None, of, is_checked=True) for n, of in enumerate((away, redis))])
    log = partial(record_action, both, "anna", "here")
    with pytest.raises(RedisUnusableError, match=r"asked for partitions 0 of 2; done in the others$"):
        pause_it(both, "category:chat", "anna", "wrong text", 0, log)
    assert redis.hget("notifier:route:category:chat", "who") == b"anna"
    with pytest.raises(RedisUnusableError):
        resume_it(both, "category:chat", "anna", log)
    publish(redis, {}, 0)
    with pytest.raises(RedisUnusableError, match=r"asked for partitions 0 of 2; nothing was withdrawn$"):
        withdraw(both)
    assert published_now(redis).version
    resumed, paused = read_actions(redis, 9)
    assert (paused.action, resumed.action) == ("pause", "resume")
    assert paused.answer.startswith("not everywhere: ")
    assert paused.answer.endswith("; until it is resumed: wrong text")
    none = Partitions([Partition(n, 2, None, away, is_checked=True) for n in range(2)])
    with pytest.raises(RedisUnusableError, match=r"asked for partitions 0, 1 of 2$"):
        resume_it(none, "category:chat", "anna", partial(record_action, none, "anna", "here"))


def test_what_is_done_to_a_full_redis_is_written_down(run: Run, redis: Redis, config: Path, server: Client) -> None:
    """Who stops, lets go or cancels is needed most there: the command ends as what it did, and the log has it."""
    with notifier(config) as producer:
        ids = [producer.send(note("ann", "Hello", fcm("ann"))) for _ in range(4)]
    redis.config_set("maxmemory", 1)
    try:
        assert run("pause", "all").status == 0
        assert run("resume", "all") == Ran(0, "all is resumed\n", "")
        assert run("cancel", ids[0]) == Ran(0, "cancelled\n", "")
        assert run("cancel", *ids[1:3]) == Ran(0, "2 cancelled\n", "")
        assert run("cancel", "--user", "ann") == Ran(0, "1 cancelled\n", "")
        assert server.post("/api/v1/pause", {"what": "all"})[0] == 200
    finally:
        redis.config_set("maxmemory", 0)
    done = [(each.action, each.answer) for each in read_actions(redis, 9)]
    assert done == [
        ("pause", "until it is resumed"),
        ("cancel of user", "1 cancelled"),
        ("cancel", "2 cancelled"),
        ("cancel", "cancelled"),
        ("resume", "resumed"),
        ("pause", "until it is resumed"),
    ]


def test_no_metric_holds_a_user(run: Run, config: Path, server: Client) -> None:
    """However many users are paused, and wait for that, the metrics say of all of them that a user is."""
    with notifier(config) as producer, worker(config):
        for user in ("paused-1", "paused-2"):
            assert run("pause", f"user:{user}", "--who", "anna").status == 0
            producer.send(note(user, "Hello", fcm(user)))
        eventually(lambda: 'notifier_waiting{why="the pause of a user"} 2.0' in server("/metrics")[1], "both to wait")
    metrics = server("/metrics")[1]
    assert metrics.count("notifier_paused{") == 1
    assert 'notifier_paused{what="a user"} 1.0' in metrics
    assert "paused-" not in metrics


def test_who_waits_for_a_pause_is_named_as_written(run: Run, config: Path) -> None:
    """Blanks and signs in a user's name, or in that of who paused, stand in it as they were given."""
    with notifier(config) as producer, worker(config):
        for user in ("zed", "zed a=b, 100%"):
            assert run("pause", f"user:{user}", "--who", "anna =b").status == 0
        ids = [producer.send(note(user, "Hello", fcm("zed"))) for user in ("zed", "zed a=b, 100%", "zed a=b, 100%")]

        def waits() -> dict[str, int]:
            told = json.loads(run("stats", "--json").out)["now"]["waits"]
            return {each["what"]: each["waiting"] for each in told if each["kind"] == "paused"}

        both = {"the pause of user:zed by anna =b": 1, "the pause of user:zed a=b, 100% by anna =b": 2}
        eventually(lambda: waits() == both, f"{both}, not {waits()}")
        said = run("stats").out
        assert re.search(r"user:zed paused .*resumed; 1 waits", " ".join(said.split()))
        assert re.search(r"user:zed a=b, 100% paused .*resumed; 2 wait", " ".join(said.split()))
        status = producer.status(ids[1])
        assert status.record.delays[-1].what == "the pause of user:zed a=b, 100% by anna =b"


def test_a_mistake_in_the_rates_does_not_stand_in_the_way(run: Run, config: Path, server: Client) -> None:
    """What stops works, and the pages show what held before and what is wrong; workers and producers go on too."""
    assert server("/")[0] == 200
    right = config.read_text(encoding="utf-8")
    config.write_text(f"{right}\ntiers: {{few: {{gap: }}}}\n", encoding="utf-8")
    wrong = "tiers.few.gap: is empty; give a value, or delete the key"
    for command in ("pause category:chat", "cancel --user 42", "cancel --all-users --category chat --yes"):
        stopped = run(*command.split())
        assert stopped.status == 0, stopped
        assert wrong in stopped.err
    assert run("resume", "category:chat").status == 0
    eventually(lambda: wrong in server("/")[1], "the file to be read once it stays as it is")
    for path in ("/rates", "/user?id=42", "/routes", "/pause", "/"):
        status, page, _ = server(path)
        assert (status, wrong in page) == (200, True), path
    config.write_text(right, encoding="utf-8")
    eventually(lambda: wrong not in server("/")[1], "the right file")
    assert server("/rates")[0] == 200


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("category:chatt", "there is no category 'chatt'; there is chat, default, marketing"),
        ("lane:fast", "there is no lane 'fast'; there is urgent, default, bulk"),
        ("marketing", "give all, category:NAME, user:ID, lane:NAME or route:NAME"),
    ],
)
def test_a_slip_of_the_pen_stops_nothing(run: Run, redis: Redis, what: str, says: str) -> None:
    """What there is none of is refused, with what there is."""
    done = run("pause", what)
    assert done.status == 2
    assert says in " ".join(done.err.replace("│", " ").split())
    assert redis.keys("notifier:route*") == []


WEBPUSH = "{client: console, hosts: ['127.0.0.1:18599', '*.example.com'], apps: {shop: {}}, key_file: x}"


def test_a_push_service_is_paused_by_its_own_route() -> None:
    """Each service of the browsers is held by itself, so a pause of them all together would stop nothing."""
    settings = parse_settings(f"providers: {{fcm: {{client: console}}, webpush: {WEBPUSH}}}")
    for name in ("webpush@127.0.0.1:18599", "webpush@a.example.com", "webpush/shop@a.example.com", "fcm"):
        assert check_what(f"route:{name}", settings) == name
    there = "there is fcm, webpush@HOST, webpush/shop@HOST"
    wrong = ("webpush", "webpush@", "webpush@HOST", "webpush@other.org", "webpush/news@a.example.com")
    wrong += ("fcm@a", "fcm@", "x")
    for name in wrong:
        with pytest.raises(PauseError) as caught:
            check_what(f"route:{name}", settings)
        assert str(caught.value) == f"there is no route {name!r}; {there}"


def test_the_default_category_is_paused_where_none_is_configured() -> None:
    """All are of it then."""
    settings = parse_settings("providers: {fcm: {client: console}}")
    assert check_what("category:default", settings) == "category:default"
    with pytest.raises(PauseError, match="there is no category 'chat'; there is default"):
        check_what("category:chat", settings)


@pytest.mark.parametrize("option", ["--for", "--reason"])
def test_a_pause_of_nothing_is_refused(run: Run, redis: Redis, option: str) -> None:
    """Without a name `pause` lists: whoever says how long, or why, means to stop something, and is told how."""
    done = run("pause", option, "1h")
    assert (done.status, done.out) == (2, "")
    said = f"{option} is of a pause: name what to stop, such as all"
    assert said in " ".join(done.err.replace("│", " ").split())
    assert redis.keys("notifier:route*") == []


def test_what_has_left_the_configuration_can_be_resumed(run: Run, redis: Redis, config: Path, server: Client) -> None:
    """Else it would stay paused for ever; a pause of it is refused, and so is a name that can be none."""
    for what in ("chat", "marketing"):
        assert run("pause", f"category:{what}").status == 0
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("chat:", "talk:").replace("marketing:", "ads:"), encoding="utf-8")
    assert "there is no category 'chat'" in run("pause", "category:chat").err
    assert "there is no category 'chat'" in server.post("/api/v1/pause", {"what": "category:chat"})[1]
    assert run("resume", "category:chat") == Ran(0, "category:chat is resumed\n", "")
    assert json.loads(server.post("/api/v1/resume", {"what": "category:marketing"})[1])["resumed"] is True
    assert redis.keys("notifier:route*") == []
    assert run("resume", "chat").status == 2
    assert server.post("/api/v1/resume", {"what": "chat"})[0] == 422


def test_suspended_is_told(run: Run, redis: Redis, config: Path, server: Client) -> None:
    """With `rq suspend` explain, stats, health, metrics and the page say so; resumed, none does."""
    with notifier(config) as producer:
        producer.send(note("42", "Hello", fcm("42")))
    redis.set("rq:suspended", 1)
    redis.hset("rq:job:" + redis.lindex("rq:queue:default", 0).decode(), "push_history", 1_577_836_800_000_000)  # type: ignore[union-attr]
    assert "suspended by rq suspend" in run("explain", "--user", "42").out
    told = json.loads(run("stats", "--json").out)["now"]
    assert told["suspended"] is True
    assert told["lanes"]["default"]["oldest_queued_s"] > 100_000_000
    assert run("stats").out.startswith("✖ Suspended: rq suspend keeps all workers")
    done = run("health")
    assert (done.status, "suspended" in done.err) == (1, True)
    metrics = server("/metrics")[1]
    assert 'notifier_suspended{partition="0"} 1.0' in metrics
    assert 'notifier_oldest_queued_seconds{lane="default"}' in metrics
    page = server("/")[1]
    assert ("rq suspend" in page, "/pause?what=" in page) == (True, False), "there is nothing of this name to pause"
    redis.delete("rq:suspended")
    assert "rq suspend" not in server("/")[1]
    assert 'notifier_suspended{partition="0"} 0.0' in server("/metrics")[1]


def test_what_ended_badly_can_be_gone_through(redis: Redis, server: Client) -> None:
    """By reason with how many, one by one, found by a part of an id; an unknown page is a page, with the search box."""
    for n in range(3):
        job_id, key = f"job-{n}", f"rq:job:job-{n}"
        redis.hset(key, mapping={"meta": json.dumps({"user": f"u{n}", "category": "chat"}), "push_outcome": "rejected"})
        redis.hset(key, "push_targets", "- apns:n|x")
        redis.zadd("rq:failed:urgent", {job_id: 4_000_000_000 + n})
        redis.xadd(
            f"rq:results:{job_id}", {"exc_string": encode_reason("400 BadTopic")}, id=f"{1_700_000_000 + n}000-0"
        )
    told = json.loads(server("/api/v1/problems?part=job-1")[1])
    assert [(each["job_id"], each["user"], each["reason"], each["route"], each["at"]) for each in told["found"]] == [
        ("job-1", "u1", "400 BadTopic", "apns", "2023-11-14T22:13:21+00:00")
    ]
    for query, refused in (("outcome=dead_token", ""), ("outcome=rejectd", "outcome"), ("page=abc", "page")):
        status, text, _ = server(f"/api/v1/problems?{query}")
        assert (status, json.loads(text).get("field", "")) == (422 if refused else 200, refused)
        assert server(f"/problems?{query}")[0] == 200
    dead = json.loads(server("/api/v1/problems?outcome=dead_token")[1])
    assert (told["more"], dead["found"]) == (False, [])
    page = server("/problems")[1]
    assert page.count("400 BadTopic") == 4
    status, page, _ = server("/nowhere", Accept="text/html")
    assert (status, "There is no such page" in page, 'action="/find"' in page) == (404, True, True)
    assert "may act" not in page, "who may act is not told that a token for it is needed"
    assert server("/find?id=job-1")[2]["location"] in {"/job?id=job-1", "/user?id=job-1"}


def test_the_newest_that_ended_badly_are_told_however_long_older_ones_are_kept(redis: Redis, server: Client) -> None:
    """RQ keeps what failed of its own for a year. What is over is not told: of its job nothing is known any more."""
    (now, _), week, year = redis.time(), 7 * 86_400, 365 * 86_400  # type: ignore[misc]
    redis.zadd("rq:failed:default", {f"of-rq-{n}": now + year - n for n in range(501)})
    redis.zadd("rq:failed:default", {f"rejected-{n}": now + week - n for n in range(501)})
    redis.zadd("rq:failed:default", {"over": now - 1})
    redis.xadd("rq:results:rejected-0", {"exc_string": encode_reason("400 BadTopic")})
    told = json.loads(server("/api/v1/problems")[1])
    assert (told["found"][0]["job_id"], told["is_all"]) == ("rejected-0", False)
    assert sum(each["count"] for each in told["counts"]) == 1_000
    found = [json.loads(server(f"/api/v1/problems?part={part}")[1])["found"] for part in ("rejected-500", "over")]
    assert found == [[], []], "the newest alone, and nothing that is over"
    redis.zremrangebyrank("rq:failed:default", 2, -1)
    assert json.loads(server("/api/v1/problems")[1])["is_all"]


def test_dead_tokens_are_counted_by_their_reason(redis: Redis, server: Client) -> None:
    """However many tokens, they are one row; each stands with its own below. What is cut off of the rows is told."""
    dead = {"user": "u", "platform": "fcm", "app": "driver", "reason": "404 UNREGISTERED"}
    for n in range(60):
        redis.xadd("notifier:feedback", dead | {"token": f"{n:02}abcdef-a-token-of-some-device-{n:02}"})
    told = json.loads(server("/api/v1/problems")[1])
    of = {"outcome": "dead token", "reason": "404 UNREGISTERED", "route": "fcm/driver", "category": ""}
    assert (told["counts"], told["other_counts"]) == ([of | {"count": 60}], 0)
    assert [each["token"] for each in told["found"][:2]] == ["59abcd…59", "58abcd…58"]
    rest = json.loads(server("/api/v1/problems?page=1")[1])
    assert [each["token"] for each in rest["found"]] == [f"{n:02}abcd…{n:02}" for n in reversed(range(10))]
    assert (told["more"], rest["more"]) == (True, False)
    assert "404 UNREGISTERED (59abcd…59)" in server("/problems")[1]
    for n in range(60):
        redis.xadd("notifier:feedback", dead | {"reason": f"reason {n}"})
    told = json.loads(server("/api/v1/problems")[1])
    assert (len(told["counts"]), sum(each["count"] for each in told["counts"]), told["other_counts"]) == (50, 109, 11)
    assert "and 11 for other reasons" in server("/problems")[1]
    redis.xadd("notifier:feedback", {"platform": "apns"})
    newest = json.loads(server("/api/v1/problems")[1])["found"][0]
    assert (newest["route"], newest["reason"], newest["user"]) == ("apns", "no reason is kept", "")
    for _ in range(MAX_READ - redis.xlen("notifier:feedback")):
        redis.xadd("notifier:feedback", dead)
    assert json.loads(server("/api/v1/problems")[1])["is_all"] is True
    redis.xadd("notifier:feedback", dead)
    assert json.loads(server("/api/v1/problems")[1])["is_all"] is False


def test_what_ended_badly_went_by_its_app(tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis) -> None:
    """That of the notification, or of its category: the route is told as in stats, history and metrics."""
    providers = {"fcm": {"client": "console", "apps": {"driver": {}}}}
    driving = {"default": {"lane": "default"}, "driving": {"lane": "bulk", "app": "driver"}}
    config = write_config(tmp_path, redis_server.url, providers, categories=driving)
    for job_id, category, targets in (
        ("own", "default", "rider fcm:n apns:a|x y"),
        ("by category", "driving", "- fcm:n|x"),
        ("none", "default", "- fcm:n|x"),
    ):
        redis.hset(f"rq:job:{job_id}", mapping={"meta": json.dumps({"user": "u", "category": category})})
        redis.hset(f"rq:job:{job_id}", "push_targets", targets)
        redis.zadd("rq:failed:bulk", {job_id: 4_000_000_000})
    with serving(config, TOKEN) as client:
        told = json.loads(client.with_token("anna")("/api/v1/problems")[1])["found"]
    assert {each["job_id"]: each["route"] for each in told} == {
        "own": "apns/rider+fcm/rider",
        "by category": "fcm/driver",
        "none": "fcm",
    }


def test_what_rq_failed_is_told_as_rq_tells_it(redis: Redis, server: Client) -> None:
    """A reason is the last line of its traceback; its time is when it failed. A reason that is no text is none."""
    queue = Queue("default", connection=redis)
    failed, odd = (queue.enqueue("math.factorial", -1) for _ in range(2))
    SimpleWorker([queue], connection=redis).work(burst=True, logging_level="CRITICAL")
    redis.xadd(f"rq:results:{odd.id}", {"exc_string": "ValueError"}, id="1700000000000000-0")
    redis.zadd("rq:failed:default", {"gone": 4_000_000_000, "long": 4_000_000_000})
    redis.xadd("rq:results:long", {"exc_string": encode_reason("400 " + "x" * 300)}, id="1700000000000-0")
    (result,) = failed.results()
    told = json.loads(server("/api/v1/problems")[1])["found"]
    assert {each["job_id"]: (each["outcome"], each["reason"], each["at"]) for each in told} == {
        failed.id: ("failed", "ValueError: factorial() not defined for negative values", result.created_at.isoformat()),
        odd.id: ("failed", "no reason is kept", None),
        "gone": ("failed", "no reason is kept", None),
        "long": ("failed", "400 " + "x" * 196, "2023-11-14T22:13:20+00:00"),
    }


def test_a_change_of_rates_is_written_down(run: Run, config: Path, redis: Redis, server: Client) -> None:
    """By whom, why, and what changed: in the log, and on the first page."""
    rates = config.with_name("new.yaml")
    rates.write_text(config.read_text(encoding="utf-8") + "user: {windows: [7/1h]}\n", encoding="utf-8")
    done = run("config", "apply", str(rates), "--yes", "--who", "anna", "--message", "fewer at night")
    assert done.status == 0
    (logged,) = read_actions(redis, 9)
    assert (logged.who, logged.action) == ("anna", "apply rates")
    assert logged.answer.startswith("fewer at night; + user.windows: [7/1h]")
    assert "apply rates by anna" in server("/")[1]
    assert "fewer at night" in server("/log")[1]
    assert run("config", "withdraw", "--yes", "--who", "bob").status == 0
    assert read_actions(redis, 1)[0].who == "bob"
