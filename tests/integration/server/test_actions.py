"""What `notifier serve` does for people and programs, and what strangers may try with it."""

import json
import os
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import patch
from urllib.parse import quote, urlencode

import pytest
import yaml
from redis import Redis
from structlog.testing import capture_logs

from notifier.errors import RedisAwayError
from notifier.operations.action_log import read_actions
from notifier.producer.notifier import Notifier
from notifier.server import state
from notifier.store.published import published_rates
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.serve_rig import EVIL, TOKEN, Answer, Client, serving
from tests.harness.support import ends, eventually, fcm, note, notifier, worker, write_config

PAGES = (
    "/",
    "/user?id=ann",
    "/routes",
    "/rates",
    "/log",
    "/problems",
    "/pause",
    "/help/suspended",
    "/help",
    "/limits",
)
TAGS = {
    *("html", "head", "meta", "title", "link", "script", "body", "header", "nav", "main", "footer", "div"),
    *("a", "strong", "h1", "h2", "p", "br", "table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "time"),
    *(
        "form",
        "label",
        "input",
        "button",
        "textarea",
        "select",
        "option",
        "code",
        "pre",
        "ul",
        "ol",
        "em",
        "section",
        "article",
        "h3",
        "li",
        "span",
        "figure",
        "figcaption",
    ),
    *("svg", "rect", "text", "line", "polyline"),
}


SECTIONS = {"user": {"windows": ["1/1h"], "max_waiting": 3}}


@pytest.fixture
def ask(config: Path) -> Iterator[Client]:
    with serving(config, TOKEN) as client:
        yield client.with_token()


def body(user: str = "ann", **fields: object) -> dict[str, object]:
    return {"user": user, "title": "Hello", "devices": [{"platform": "fcm", "token": fcm(user).token}], **fields}


def test_a_program_enqueues(ask: Client, config: Path) -> None:
    """POST /api/v1/notifications accepts what Notifier.send does, once under one key, and says what else is wrong."""
    status, text, headers = ask.post("/api/v1/notifications", body(), Idempotency_Key="order-1")
    job_id = json.loads(text)["job_id"]
    assert (status, headers["location"]) == (202, f"/api/v1/jobs?id={job_id}")
    again = ask.post("/api/v1/notifications", body(), Idempotency_Key="order-1")
    assert json.loads(again[1])["job_id"] == job_id
    with notifier(config) as producer:
        assert producer.status(job_id).state == "queued"
    wrong: list[tuple[object, int, str | None]] = [
        (body(priority="loud"), 422, "priority"),
        (body(category="nope"), 422, "category"),
        (body(sent_at="x"), 422, "sent_at"),
        (body(job_id="a b"), 422, "job_id"),
        ({}, 422, "user"),
        ([1], 400, None),
    ]
    for given, expected, field in wrong:
        status, text, headers = ask.post("/api/v1/notifications", given)
        told = json.loads(text)
        assert (status, told["status"], told.get("field")) == (expected, expected, field), given
        assert headers["content-type"] == "application/problem+json"
    assert ask.post("/api/v1/notifications", body(dedupe_key="a"), Idempotency_Key="b")[0] == 400
    assert ask.post("/api/v1/notifications", body(), Idempotency_Key="x" * 201)[0] == 400
    assert ask.post("/api/v1/notifications", body(), Content_Type="text/plain")[0] == 415
    assert ask.post("/api/v1/notifications", body(title="x" * 1_000_001))[0] == 413
    statuses = [ask.post("/api/v1/notifications", body("bob"))[0] for _ in range(4)]
    assert statuses == [202, 202, 202, 429]


def test_a_file_that_is_being_written_is_left_alone(ask: Client, config: Path) -> None:
    """Half of it may be valid YAML: what the other half allows is not refused meanwhile."""
    notification = {"user": "ann", "category": "chat", "title": "Hi"}
    notification |= {"devices": [{"platform": "fcm", "token": "a" * 40}]}
    assert ask.post("/api/v1/notifications", notification)[0] == 202
    whole = yaml.safe_load(config.read_text(encoding="utf-8"))
    half = whole | {"categories": {name: of for name, of in whole["categories"].items() if name != "chat"}}
    config.write_text(yaml.safe_dump(half), encoding="utf-8")
    os.utime(config, (4e9, 4e9))  # by its time it was written just now, however long this test takes
    assert ask.post("/api/v1/notifications", notification)[0] == 202
    os.utime(config, (1e9, 1e9))
    status = partial(ask.post, "/api/v1/notifications", notification)
    eventually(lambda: status()[0] == 422, "the file to be read once it stays as it is")


def test_why_each_waits(ask: Client, config: Path) -> None:
    """The API and the pages say of each that waits what holds it back, and let it be cancelled, which is logged."""
    with worker(config), notifier(config) as producer:
        first = producer.send(note("ann", "1", fcm("ann")))
        ends(producer, first, "delivered")
        second = producer.send(note("ann", "2", fcm("ann")))
        eventually(lambda: producer.status(second).state == "waiting", "one that waits")
    queued = producer_send(config, "ann", "3")
    told = json.loads(ask("/api/v1/users?id=ann")[1])
    assert [(each["job_id"], each["held_by"]) for each in told["line"]] == [(second, "user 1/1h")]
    assert told["outside"] == "1 queued"
    assert told["uses"][0]["at"].startswith(str(config))
    page = ask("/user?id=ann")[1]
    assert "the rule user 1/1h" in page
    assert "In no backlog, of all users: 1 queued." in page
    assert "1 of 1" in page
    found = json.loads(ask(f"/api/v1/jobs?id={second}")[1])
    assert (found["held_by"], found["user"], found["category"]) == ("user 1/1h", "ann", "default")
    assert "the rule user 1/1h" in ask(f"/job?id={second}")[1]

    status, text, _ = ask.post("/api/v1/jobs/cancel", {"id": second})
    assert (status, json.loads(text)["answer"]) == (200, "cancelled")
    assert ask.post("/api/v1/jobs/cancel", {"id": first})[0] == 409
    assert ask.post("/api/v1/jobs/cancel", {"id": "unknown"})[0] == 404
    status, _, headers = ask.submit("/job/cancel", id=queued, user="ann")
    assert (status, headers["location"]) == (303, "/user?id=ann&done=cancelled")
    assert "Cancelled. It will not be sent." in ask(headers["location"])[1]
    logged = json.loads(ask("/api/v1/actions")[1])["actions"]
    assert [(each["who"], each["action"], each["of"], each["answer"]) for each in logged] == [
        ("ann", "cancel", queued, "cancelled"),
        ("ann", "cancel", "unknown", "unknown"),
        ("ann", "cancel", first, "ended"),
        ("ann", "cancel", second, "cancelled"),
    ]
    assert {each["address"] for each in logged} == {"127.0.0.1"}


def test_all_that_waits_for_a_user_is_cancelled(ask: Client, config: Path) -> None:
    """By the API of a kind, by the page all of it; both are logged, and what is not well formed is refused."""
    with notifier(config) as producer:
        tagged, plain = producer.send(note("ann", tags=["t"])), producer.send(note("ann"))
        status, text, _ = ask.post("/api/v1/users/cancel", {"user": "ann", "tag": "t", "category": "default"})
        assert (status, json.loads(text)) == (200, {"user": "ann", "cancelled": 1, "too_late": []})
        assert [producer.status(job_id).state for job_id in (tagged, plain)] == ["cancelled", "queued"]  # type: ignore[union-attr]
        assert ask.post("/api/v1/users/cancel", {"user": "ann", "category": "No such name"})[0] == 422
        assert "Cancel all that waits" in ask("/user?id=ann")[1]
        status, asked, _ = ask.submit("/user/cancel", user="ann")
        assert (status, "0 notifications in the backlogs of" in asked) == (200, True)
        assert producer.status(plain).state == "queued"  # type: ignore[union-attr]
        status, _, headers = ask.submit("/user/cancel", user="ann", sure="1")
        assert (status, headers["location"]) == (303, "/user?id=ann&done=all_cancelled")
        assert "will not be sent" in ask(headers["location"])[1]
        assert producer.status(plain).state == "cancelled"  # type: ignore[union-attr]
    logged = json.loads(ask("/api/v1/actions")[1])["actions"]
    assert [(each["action"], each["of"], each["answer"]) for each in logged] == [
        ("cancel of user", "ann", "1 cancelled"),
        ("cancel of user", "ann category default, tag t", "1 cancelled"),
    ]


@pytest.mark.parametrize(
    ("path", "given", "why"),
    [
        ("users/cancel", {"user": "ann", "tag": ""}, "tag: must not be empty"),
        ("users/cancel", {"user": "ann", "category": ""}, "category: '' is not a name"),
        ("users/cancel", {"user": "ann", "collapse_id": ""}, "collapse_id: must not be empty"),
        ("users/cancel", {"user": "ann", "categroy": "chat"}, "categroy: is not a field; did you mean category?"),
        ("users/cancel", {"user": "ann", "tags": ["t"]}, "tags: is not a field; did you mean tag?"),
        ("users/cancel", {"category": "chat"}, "user: "),
        ("users/cancel", {"user": "ann", "sure": True}, "sure: is not a field; known are category, collapse_id, tag"),
        ("jobs/cancel", {"id": "x", "sure": True}, "sure: is not a field; known are id"),
        ("pause", {"what": "user:ann", "fro": "1h"}, "fro: is not a field; did you mean for?"),
        ("pause", {"what": "user:ann", "for": ""}, "for: "),
        ("resume", {"what": "user:ann", "for": "1h"}, "for: is not a field; known are what"),
        ("rates/preview", {"rate": ""}, "rate: is not a field; did you mean rates?"),
        ("rates/apply", {"replace": "false"}, "replace: must be true or false"),
        ("rates/apply", {"force": True}, "force: is not a field; did you mean before?"),
        ("rates/withdraw", {"before": "x"}, "before: is not a field; known are none"),
        ("traffic", {"minute": 5}, "minute: is not a field; did you mean minutes?"),
        ("notifications", {"n" * 200: 1}, "n" * 100 + ": is not a field; known are apns, app, badge, body, "),
    ],
)
def test_an_action_is_not_done_without_a_field_that_it_does_not_know(
    ask: Client, config: Path, path: str, given: dict[str, object], why: str
) -> None:
    """A filter that is empty or misspelled is no filter, and would cancel all: it is refused, and nothing is done."""
    job_id = producer_send(config, "ann", "stays")
    if "replace" in given:
        given |= {"rates": "tiers: {}", "before": json.loads(ask("/api/v1/rates")[1])["version"]}
    status, text, _ = ask.post(f"/api/v1/{path}", given)
    told = json.loads(text)
    assert (status, told.get("field"), told["detail"].startswith(why)) == (422, why.partition(":")[0], True), text
    with notifier(config) as producer:
        assert producer.status(job_id).state == "queued"  # type: ignore[union-attr]
    assert json.loads(ask("/api/v1/actions")[1])["actions"] == []


def test_each_action_is_in_the_log_of_the_process(ask: Client, config: Path) -> None:
    """What is told of the actions in Redis stands there too: who, from where, what, of what, with what answer."""
    job_id = producer_send(config, "ann", "1")
    with capture_logs() as logs:
        for path, given in (
            ("pause", {"what": "category:chat", "for": "1h", "reason": "wrong text"}),
            ("resume", {"what": "category:chat"}),
            ("jobs/cancel", {"id": job_id}),
            ("users/cancel", {"user": "ann"}),
            ("rates/withdraw", {}),
            ("traffic", {"minutes": 0}),
        ):
            assert ask.post(f"/api/v1/{path}", given)[0] == 200, path
    names = ("who", "address", "action", "of", "answer")
    told = json.loads(ask("/api/v1/actions")[1])["actions"]
    assert len(told) == 6
    assert [tuple(each[name] for name in names) for each in reversed(told)] == [
        tuple(each[name] for name in names) for each in logs if each["event"] == "action"
    ]


def producer_send(config: Path, user: str, title: str) -> str:
    with notifier(config) as producer:
        return producer.send(note(user, title, fcm(user)))


def test_a_cancel_that_redis_breaks_off_is_logged(ask: Client) -> None:
    """As a pause is: some may have been cancelled before."""
    with patch.object(Notifier, "cancel", side_effect=RedisAwayError("away")):
        assert ask.post("/api/v1/jobs/cancel", {"id": "j1"})[0] == 503
        assert ask.post("/api/v1/users/cancel", {"user": "ann", "tag": "t"})[0] == 503
    logged = json.loads(ask("/api/v1/actions")[1])["actions"]
    assert [(each["action"], each["of"], each["answer"]) for each in logged] == [
        ("cancel of user", "ann tag t", "not everywhere: away"),
        ("cancel", "j1", "not everywhere: away"),
    ]


def test_a_form_leaves_out_what_is_empty(ask: Client) -> None:
    """The field for how long of the page Pause may stay empty: then it is paused until it is resumed."""
    assert ask.submit("/pause", what="user:ann", **{"for": "", "reason": ""})[0] == 303
    (paused,) = json.loads(ask("/api/v1/pauses")[1])["pauses"]
    assert (paused["what"], paused["next_at"]) == ("user:ann", None)


@pytest.mark.parametrize(
    ("path", "given", "status", "back"),
    [
        ("/pause", {"what": "all", "for": "an hour"}, 422, "/pause"),
        ("/resume", {"what": "nothing such"}, 422, "/pause"),
        ("/rates/apply", {"rates": "user: {}", "before": "other"}, 409, "/rates"),
        ("/job/cancel", {"id": "a b", "user": "a&b"}, 404, "/find?id=a%26b"),
        ("/job/cancel", {"id": "a b"}, 404, "/find?id=a+b"),
        ("/user/cancel", {"user": "ann", "sure": "perhaps"}, 422, "/find?id=ann"),
    ],
)
def test_a_form_that_fails_says_so_until_somebody_goes_on(
    ask: Client, path: str, given: dict[str, str], status: int, back: str
) -> None:
    """The page does not renew itself: that would ask for another page, which says nothing of what was not done."""
    answered, page, _ = ask.submit(path, **given)
    assert (answered, "data-renew" in page) == (status, False), page
    assert f'<a href="{back}">Go back</a>' in page


def test_a_page_that_fails_renews_itself(ask: Client) -> None:
    """The next time it may be well; what is not here never is."""
    assert 'data-renew="5"' in ask("/job?id=unknown")[1]
    assert "data-renew" not in ask("/nothing", Accept="text/html")[1]


def test_each_name_has_its_token_and_its_role(config: Path) -> None:
    """Who may look sees the pages without their forms and changes nothing; what others do is logged by their name."""
    tokens = f"# who may ask\nboard look {'l' * 24}\nanna  act  {'a' * 24}\n"
    with serving(config, tokens) as client:
        board, anna = (Client(client.port, Authorization=f"Bearer {letter * 24}") for letter in "la")
        assert [ask("/metrics")[0] for ask in (client, board, anna)] == [401, 200, 200]
        assert ['<form method="post"' in ask("/pause")[1] for ask in (board, anna)] == [False, True]
        status, text, _ = board.post("/api/v1/pause", {"what": "all"})
        assert (status, "board may look and not act" in text) == (403, True)
        assert anna.post("/api/v1/pause", {"what": "all"})[0] == 200
        assert json.loads(board("/api/v1/actions")[1])["actions"][0]["who"] == "anna"


def test_nobody_chooses_the_address_that_is_logged(ask: Client) -> None:
    """It is the other end of the connection, whatever the headers of a proxy say."""
    told = {"X_Forwarded_For": "203.0.113.66", "Forwarded": "for=203.0.113.66", "X_Real_IP": "203.0.113.66"}
    assert ask.post("/api/v1/resume", {"what": "all"}, **told)[0] == 200
    assert [each["address"] for each in json.loads(ask("/api/v1/actions")[1])["actions"]] == ["127.0.0.1"]


def test_rates_are_previewed_and_applied(ask: Client, config: Path, redis: Redis) -> None:
    """New rates are tried on recorded traffic, refused with their lines where they are wrong, and applied to all."""
    assert ask.post("/api/v1/traffic", {"minutes": 1})[0] == 200
    assert ask.post("/api/v1/traffic", {"minutes": 1})[0] == 409
    eventually(lambda: redis.exists("notifier:trace"), "the recording")
    for n in range(3):
        producer_send(config, "ann", str(n))
    eventually(lambda: json.loads(ask("/api/v1/rates")[1])["traffic"]["events"] == 3, "what was recorded")
    assert json.loads(ask.post("/api/v1/traffic", {"minutes": 0})[1])["is_running"] is False
    in_force = json.loads(ask("/api/v1/rates")[1])
    new = in_force["rates"].replace("1/1h", "2/1h")
    told = json.loads(ask.post("/api/v1/rates/preview", {"rates": new})[1])
    assert told["changes"] == ["- user.windows: [1/1h]", "+ user.windows: [2/1h]"]
    assert (told["before"], told["lost"]) == (in_force["version"], [])
    assert told["report"]["notifications"] == 3
    assert told["report"]["shorter"] == 2
    assert "<svg" in ask.submit("/rates/preview", rates=new)[1]

    status, text, _ = ask.post("/api/v1/rates/preview", {"rates": "user:\n  windows: [1/ever]\n"})
    assert (status, json.loads(text)["errors"][0][:29]) == (422, "the new rates:2:13: user.wind")
    assert "the new rates:2:13" in ask.submit("/rates/preview", rates="user:\n  windows: [1/ever]\n")[1]
    for wrong, why in (
        ("", "is empty"),
        ("[]", "must be sections"),
        ("usr: {}", "'usr' is no section"),
        ("users_from: /etc/passwd", "names files of one host"),
        ("user: &a {}", "anchors"),
        ("providers: {}", "has none of the sections"),
        ("x" * 9, "must be sections"),
    ):
        status, text, _ = ask.post("/api/v1/rates/preview", {"rates": wrong})
        assert (status, why in text) == (422, True), wrong
    lost = {"rates": "user: {windows: [5/1h]}\n", "before": in_force["version"]}
    assert ask.post("/api/v1/rates/apply", lost)[0] == 409
    page = ask.submit("/rates/preview", rates=lost["rates"])[1]
    for part in ("no categories, but such rates are in force", "Remove these, and apply to all workers", "replace=1"):
        assert part in page
    assert ask.post("/api/v1/rates/apply", {"rates": new, "before": "other"})[0] == 409
    assert published_rates(redis)[1] is None

    status, _, headers = ask.submit("/rates/apply", rates=new, before=told["before"], message="the sale is over")
    assert (status, headers["location"]) == (303, "/rates?done=applied")
    assert read_actions(redis, 1)[0].answer == "the sale is over; - user.windows: [1/1h]; + user.windows: [2/1h]"
    published, rates = published_rates(redis)
    assert (published.version, rates["user"]["windows"]) == (told["version"], ["2/1h"])
    now = json.loads(ask("/api/v1/rates")[1])
    assert (now["version"], now["source"]) == (told["version"], "applied")
    assert json.loads(ask("/api/v1/users?id=ann")[1])["uses"][0]["rule"] == "2/1h"
    assert json.loads(ask.post("/api/v1/rates/withdraw")[1])["withdrawn"] is True
    assert json.loads(ask("/api/v1/rates")[1])["version"] == in_force["version"]


def test_actions_need_the_token_and_the_same_origin(config: Path) -> None:
    """A page of another origin does nothing in a browser that has the token; nor does anyone without a token."""
    posts = ("/job/cancel", "/rates/apply", "/api/v1/notifications", "/api/v1/rates/withdraw", "/nothing")
    with serving(config, TOKEN) as stranger:
        ask = stranger.with_token()
        foreign = (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": f"http://127.0.0.1:{stranger.port}.evil.example"},
            {"Origin": ""},
            {"Sec_Fetch_Site": "cross-site"},
            {"Sec_Fetch_Site": "same-site", "Origin": stranger.url},
            {"Sec_Fetch_Site": "none"},
        )
        for path in posts:
            assert stranger.submit(path, id="x")[0] == stranger.post(path)[0] == 401, path
            for headers in foreign:
                assert ask.submit(path, headers, id="x")[0] == 403, (path, headers)
        same = {"Origin": stranger.url, "Sec_Fetch_Site": "same-origin"}
        assert ask.submit("/job/cancel", same, id="x")[0] == 303
        assert ask("/job/cancel")[0] == 405
        assert [each["of"] for each in json.loads(ask("/api/v1/actions")[1])["actions"]] == ["x"]
    for is_open in (False, True):
        with serving(config, is_open=is_open) as ask:
            for path in posts:
                assert ask.post(path)[0] == 403, path
            page = ask("/rates")[1]
            assert "NOTIFIER_SERVER_TOKEN" in page
            assert 'method="post"' not in page


class Checked(HTMLParser):
    """Fails for what no page of ours holds."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            assert name != "style"
            assert name not in {"href", "src", "action"} or value.startswith(("/", "#")), (tag, value)
        if tag == "script":
            self.scripts.append(dict(attrs).get("src"))


def test_what_others_name_themselves_is_text(config: Path, redis: Redis) -> None:
    """Users, job ids, workers, routes, reasons, zones, who asks: none becomes a tag, an attribute, or a place to go."""
    with notifier(config) as producer:
        job_id = producer.send(note(EVIL, EVIL, fcm("evil"), data={EVIL: EVIL}, collapse_id=EVIL))
    raw = {"status": "scheduled", "origin": EVIL, "meta": json.dumps({"user": "ann", "category": EVIL})}
    for user in ("ann", EVIL):
        redis.hset(f"notifier:backlogs:{{{user}}}", EVIL, "default")
        redis.zadd(f"notifier:backlog:{{{user}}}:{EVIL}", {EVIL: 1})
        redis.zadd("notifier:wakeups:default", {user: 1})
    redis.hset("rq:job:" + EVIL, mapping=raw)
    redis.zadd("notifier:later", {EVIL: 1})
    redis.sadd("rq:workers", "rq:worker:" + EVIL)
    fields = {"hostname": EVIL, "push_looked": 1, "rates_version": EVIL, "rates_from": EVIL, "rates_problem": EVIL}
    redis.hset("rq:worker:" + EVIL, mapping=fields | {"push_limits": json.dumps({EVIL: 3})})
    redis.sadd("notifier:routes", EVIL)
    redis.hset("notifier:route:" + EVIL, mapping={"state": EVIL, "until": 1, "kind": EVIL, "reason": EVIL})
    redis.hset("rq:job:evil", mapping={"status": "failed", "push_outcome": EVIL, "meta": raw["meta"]})
    minute = int(redis.time()[0]) // 60
    redis.hset(f"notifier:minute:{minute}", mapping={f"o|delivered|{EVIL}|{EVIL}": 1, f"late|{EVIL}|3": 1})
    evil = quote(EVIL, safe="")
    with serving(config, TOKEN) as stranger:
        ask = stranger.with_token(EVIL)
        ask.submit("/job/cancel", id=job_id, user=EVIL)
        more = (f"/user?id={evil}&category={evil}", f"/job?id={job_id}", "/job?id=evil", f"/job?id={evil}&done={evil}")
        for path in (*PAGES, *more, f"/?minutes={evil}", f"/rates?done={evil}"):
            status, page, headers = ask(path)
            assert status in {200, 404}, (path, status)
            checked = Checked()
            checked.feed(page)
            plots = ["/uplot/uPlot.js", "/live.js"] if path == "/" or path.startswith("/?") else []
            assert checked.scripts == ["/page.js", *plots], path
            assert "<script>alert" not in page
            assert path != "/" or page.count("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;") >= 6
            assert headers["content-security-policy"].startswith("default-src 'none'")
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
        for text in (EVIL, f"user: {{windows: ['{EVIL}']}}", f"{EVIL}: 1"):
            checked = Checked()
            checked.feed(ask.submit("/rates/preview", rates=text)[1])
            assert checked.scripts == ["/page.js"]
        for path in ("/api/v1/users?id=ann", "/api/v1/rates", "/api/v1/routes"):
            status, text, headers = ask(path)
            assert (status, headers["content-type"], bool(json.loads(text))) == (200, "application/json", True)
        for number in (evil, "0", "99999"):
            status, text, _ = ask(f"/api/v1/stats?minutes={number}")
            assert (status, json.loads(text)["detail"]) == (422, "minutes: must be a number from 1 to 180")
        assert ask("/metrics")[0] == 200


def test_pages_stay_bounded(config: Path, redis: Redis) -> None:
    """With 100,000 users who wait, and 5,000 messages of one of them, each page has a bounded size and cost."""
    for first in range(1, 100_001, 5_000):
        redis.zadd("notifier:wakeups:default", {f"user-{n}": n for n in range(first, first + 5_000)})
        redis.zadd("notifier:later", {f"job-{n}": n for n in range(first, first + 5_000)})
    redis.zadd("notifier:backlog:{ann}:default", {f"job-{n}": n for n in range(5_000)})
    redis.hset("notifier:backlogs:{ann}", "default", "default")

    def commands() -> int:
        return int(redis.info("stats")["total_commands_processed"])

    with serving(config, TOKEN) as stranger:
        ask = stranger.with_token()
        for path in (*PAGES, "/user?id=ann&long=1"):
            before = commands()
            status, page, _ = ask(path)
            assert status == 200, path
            assert len(page) < 150_000, path
            assert commands() - before < 3_500, path


def test_it_waits_for_replicas_as_long_as_it_waits_for_redis(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """Where they are behind, that is said before the connection is given up for a Redis that hangs."""
    config = write_config(tmp_path, "", redis={"url": redis_server.url, "wait_replicas": 1})
    with serving(config, TOKEN) as stranger:
        status, text, _ = stranger.with_token().post("/api/v1/notifications", body())
    told = json.loads(text)
    assert (status, told["title"]) == (503, "Not replicated")
    assert "0 of 1 replicas have it so far" in told["detail"], text


def test_many_programs_enqueue_at_once(ask: Client) -> None:
    """As many as come wait for their turn while Redis is well, and each is accepted."""
    with ThreadPoolExecutor(120) as threads:
        answers = list(threads.map(lambda n: ask.post("/api/v1/notifications", body(f"u{n}")), range(360)))
    assert Counter(status for status, *_ in answers) == {202: 360}


def test_more_than_may_wait_are_told_so(config: Path) -> None:
    """It is not said of a Redis that is well that it does not answer."""
    with serving(config, TOKEN) as stranger, patch.object(state, "MAX_ASKED", 0):
        status, text, _ = stranger.with_token().post("/api/v1/notifications", body())
    assert (status, json.loads(text)["title"]) == (503, "Too many ask")


class Forms(HTMLParser):
    """The forms of a page as a browser sends them: where to, and the fields, with the line breaks that it writes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.found.append((given["action"], {}))
        elif given.get("type") == "hidden":
            lines = given["value"].replace("\0", "\N{REPLACEMENT CHARACTER}").splitlines()
            self.found[-1][1][given["name"]] = "\r\n".join(lines)


def press(ask: Client, page: str, action: str) -> Answer:
    """What is answered to the first form of a page that leads there."""
    path, fields = next(form for form in Forms(page).found if form[0].startswith(action))
    return ask.submit(path, **fields)


def test_a_form_acts_on_the_user_of_its_page(ask: Client, config: Path) -> None:
    """Whatever an id is made of: a browser changes line breaks and NUL in the fields of a form."""
    odd, alike = "cr\r\nlf\0 %0D&", "cr\nlf\N{REPLACEMENT CHARACTER} %0D&"
    with worker(config), notifier(config) as producer:
        for user in (odd, alike):
            ends(producer, producer.send(note(user)), "delivered")
        jobs = [producer.send(note(user)) for user in (odd, odd, alike)]
        for job_id in jobs:
            ends(producer, job_id, "waiting")
        _, _, done = press(ask, ask(f"/user?id={quote(odd)}")[1], "/job/cancel")
        assert done["location"] == f"/user?{urlencode({'id': odd, 'done': 'cancelled'})}"
        _, sure, _ = press(ask, ask(done["location"])[1], "/user/cancel")
        assert "1 notification in the backlogs of" in sure
        _, _, done = press(ask, sure, "/user/cancel")
        assert done["location"] == f"/user?{urlencode({'id': odd, 'done': 'all_cancelled'})}"
        states = [producer.status(job_id).state for job_id in jobs]  # type: ignore[union-attr]
    assert states == ["cancelled", "cancelled", "waiting"]


def test_an_action_at_a_redis_that_hangs(tmp_path: Path) -> None:
    """While Redis takes connections and never answers, pages and actions say 503 in time."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as deaf:
        url = f"redis://127.0.0.1:{deaf.getsockname()[1]}/0"
        config = write_config(tmp_path, url)
        document = config.read_text(encoding="utf-8").replace(f"url: {url}", f"url: {url}\n  socket_timeout: 1s")
        config.write_text(document, encoding="utf-8")
        with serving(config, TOKEN, answer_s=0.3) as stranger:
            ask = stranger.with_token()
            for path in PAGES:
                if not path.startswith("/help"):  # which asks for nothing
                    status, page, _ = ask(path)
                    assert (status, "Redis does not answer" in page) == (503, True), path
            assert ask.submit("/job/cancel", id="x")[0] == 503
            assert ask.post("/api/v1/notifications", body())[0] == 503
            assert ask("/healthz")[0] == 200
