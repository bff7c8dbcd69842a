import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from structlog.testing import capture_logs

from notifier import AsyncNotifier, Notifier
from notifier.errors import RedisAwayError, RedisUnusableError, SettingsError
from notifier.settings import load_settings, parse_settings
from notifier.settings.schema import RedisSettings
from notifier.store.aio import async_of
from notifier.store.connection import address, ask, check, client_of, connect, eviction_warning, is_forbidden, unusable
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import eventually, note, write_config
from workers.configuration.start import wait_for_redis
from workers.configuration.wiring import asyncio_client


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(extra_args=("--requirepass", "hunter2")) as running:
        yield running


def named(url: str, **keys: str) -> RedisSettings:
    # As NOTIFIER_REDIS_URL would: a URL with a password cannot come out of a file.
    return parse_settings(f"redis: {json.dumps(keys)}").redis.model_copy(update={"url": url})


def refusal(settings: RedisSettings) -> str:
    with closing(connect(settings)) as client, pytest.raises(RedisUnusableError) as caught:
        check(client)
    text = str(caught.value)
    assert "\n" not in text
    assert "hunter2" not in text
    return text


@contextmanager
def answering(reply: bytes) -> Iterator[int]:
    """Serve one connection on a free port, giving `reply` to each of its commands."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                while connection.recv(65_536):
                    connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(listener.getsockname()[1])
        thread.join()


def test_a_good_redis_passes(server: EmbeddedRedis, tmp_path: Path) -> None:
    """With the right password, from the URL or from a file, the check is silent."""
    (tmp_path / "password").write_text("hunter2\n", encoding="utf-8")
    from_file = named(server.url, password_file=str(tmp_path / "password"))
    from_url = named(f"redis://:hunter2@127.0.0.1:{server.port}/0")
    for settings in (from_file, from_url):
        with closing(connect(settings)) as client:
            check(client)
            assert client.set("a", "1")
            assert client.get("a") == b"1"


def test_a_wrong_and_a_missing_password_are_told_apart(server: EmbeddedRedis) -> None:
    """Host and port are named and what to set; no password is ever shown."""
    where = f"Redis at 127.0.0.1:{server.port}"
    wrong = f"redis://:hunter22@127.0.0.1:{server.port}/0"
    look = "look at redis.password_file and NOTIFIER_REDIS_URL; each node has users of its own"
    assert refusal(named(wrong)) == f"{where} refuses the password; {look}"
    assert refusal(named(server.url)) == f"{where} wants a password; set redis.password_file or NOTIFIER_REDIS_URL"


def test_a_missing_password_is_told_also_of_a_long_command(server: EmbeddedRedis) -> None:
    """Redis refuses the length of a script before it has read it, and says only that it was unauthenticated."""
    with closing(connect(named(server.url))) as client, pytest.raises(redis.exceptions.RedisError) as refused:
        client.execute_command("EVALSHA", "0" * 40, "0", *["x"] * 20)
    assert str(unusable(refused.value)) == "Redis wants a password; set redis.password_file or NOTIFIER_REDIS_URL"


@pytest.mark.parametrize("guess", [None, "guess"])
def test_sentinels_that_refuse_the_password_are_named(server: EmbeddedRedis, tmp_path: Path, guess: str | None) -> None:
    """They are there, so nobody waits for them: by a call of either kind of client, as by the check at the start."""
    url, keys = f"redis+sentinel://127.0.0.1:{server.port}/mymaster", {}
    if guess is not None:
        (file := tmp_path / "password").write_text(guess)
        keys = {"sentinel_password_file": str(file)}
    config = write_config(tmp_path, url, redis={"url": url, **keys})
    why = "the sentinels refuse the password; look at redis.sentinel_password_file"

    async def ask() -> None:
        async with AsyncNotifier.from_config(config, {}, follow=False) as made:
            await made.send(note("ann"))

    with pytest.raises(RedisUnusableError, match=why) as caught, Notifier.from_config(config, {}, follow=False) as made:
        made.send(note("ann"))
    assert not isinstance(caught.value, RedisAwayError)
    with pytest.raises(RedisUnusableError, match=why):
        asyncio.run(ask())
    assert refusal(load_settings(config, {}).redis).endswith(why)


def test_nobody_listening_is_told_alike_by_both_kinds_of_client() -> None:
    """The address and the system's own word; asyncio's words for it are not shown."""

    async def ask() -> None:
        await redis.asyncio.Redis(port=1, retry=AsyncRetry(NoBackoff(), 0)).ping()

    said = "Redis does not answer at localhost:1: Connection refused"
    for call in (lambda: redis.Redis(port=1, retry=Retry(NoBackoff(), 0)).ping(), lambda: asyncio.run(ask())):
        with pytest.raises(redis.exceptions.ConnectionError) as refused:
            call()
        assert str(unusable(refused.value)) == said


def test_no_sentinel_is_told_alike_by_both_kinds_of_client(tmp_path: Path) -> None:
    """In one line, without redis-py's objects: by a call, as by the check at the start."""
    config = write_config(tmp_path, "redis+sentinel://127.0.0.1:1/mymaster")
    why = "no sentinel answers, or none knows a healthy primary of this name"

    async def ask() -> None:
        async with AsyncNotifier.from_config(config, {}, follow=False) as made:
            await made.send(note("ann"))

    with pytest.raises(RedisAwayError) as caught, Notifier.from_config(config, {}, follow=False) as made:
        made.send(note("ann"))
    assert str(caught.value) == f"Redis does not answer: No master found for 'mymaster': {why}"
    with pytest.raises(RedisAwayError) as caught:
        asyncio.run(ask())
    assert str(caught.value) == f"Redis does not answer: No master found for 'mymaster': {why}"
    assert refusal(load_settings(config, {}).redis) == (
        f"Redis at mymaster by Sentinel at 127.0.0.1:1 is unknown there: {why}"
    )


def test_a_password_that_nobody_asked_for_is_told() -> None:
    """A password for a Redis that has none is one clear line."""
    with EmbeddedRedis() as plain:
        assert "has no password, but one is given" in refusal(named(f"redis://:hunter2@127.0.0.1:{plain.port}/0"))


def test_a_user_without_rights_is_told(server: EmbeddedRedis) -> None:
    """A Redis user that may not run INFO is told so."""
    with closing(redis.Redis.from_url(server.url, password="hunter2")) as admin:
        admin.acl_setuser("poor", enabled=True, passwords=["+hunter2"], commands=["+ping", "+client"])
    assert "does not let this user run INFO" in refusal(named(f"redis://poor:hunter2@127.0.0.1:{server.port}/0"))


def test_nobody_listening_is_told_with_the_address() -> None:
    """A refused connection names host and port and the system's reason."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        port = mute.getsockname()[1]
        assert refusal(named(f"redis://:hunter2@127.0.0.1:{port}")) == (
            f"Redis at 127.0.0.1:{port} cannot be reached: Connection refused"
        )


def test_a_socket_that_does_not_exist_is_told(tmp_path: Path) -> None:
    """For a Unix socket the path stands in the place of host and port."""
    assert refusal(named(f"unix://{tmp_path}/none.sock")) == (
        f"Redis at {tmp_path}/none.sock cannot be reached: No such file or directory"
    )


def test_silence_is_told_after_the_timeout() -> None:
    """A server that accepts and says nothing is given up after socket_timeout, once."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert refusal(named(f"redis://127.0.0.1:{port}", socket_timeout="50ms")) == (
            f"Redis at 127.0.0.1:{port} does not answer in time"
        )


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ("redis_version:6.0.16\r\n", "is version 6.0.16; 6.2 or newer is needed"),
        ("redis_version:5.0.7\r\n", "is version 5.0.7; 6.2 or newer is needed"),
        ("something:else\r\n", "is version unknown; 6.2 or newer is needed"),
        (
            "redis_version:7.0.0\r\nredis_mode:sentinel\r\n",
            "is a sentinel; write its URL as redis+sentinel://host:26379,host:26379/service/0",
        ),
        (
            "redis_version:7.2.4\r\nserver_mode:sentinel\r\n",  # Valkey
            "is a sentinel; write its URL as redis+sentinel://host:26379,host:26379/service/0",
        ),
        (
            "redis_version:7.2.4\r\nserver_mode:cluster\r\n",
            "is a node of a cluster; write its URL as redis+cluster://host:6379,host:6379",
        ),
    ],
)
def test_a_server_that_cannot_be_used_is_told(info: str, says: str) -> None:
    """One that is older than 6.2, or does not say its version; a sentinel and a node of a cluster, with their form."""
    with answering(f"${len(info)}\r\n{info}\r\n".encode()) as port:
        assert refusal(named(f"redis://127.0.0.1:{port}")) == f"Redis at 127.0.0.1:{port} {says}"


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_redis_that_evicts_is_refused_with_its_policy(redis_server: EmbeddedRedis, policy: str) -> None:
    """Whatever it may remove when it is full, keys with an expiry or any: a permit or a notification is among them."""
    settings = named(redis_server.url)
    with closing(connect(settings)) as client:
        client.config_set("maxmemory-policy", policy)
        try:
            assert refusal(settings) == (
                f"Redis at 127.0.0.1:{redis_server.port} removes keys when it is full, accepted notifications among"
                f" them (maxmemory-policy {policy}); set its maxmemory-policy to noeviction"
            )
            assert f"(maxmemory-policy {policy})" in eviction_warning(client.info("memory"))
            with pytest.raises(RedisUnusableError, match=f"maxmemory-policy {policy}"):
                wait_for_redis(client)  # no worker starts
        finally:
            client.config_set("maxmemory-policy", "noeviction")
        check(client)
        assert eviction_warning(client.info("memory")) == ""


def test_a_redis_that_does_not_tell_its_policy_is_taken_with_a_warning() -> None:
    """A hosted Redis may leave it out of INFO: a worker starts, and its log says what to make sure of."""
    info = "redis_version:7.0.0\r\nused_memory:1\r\n"
    with (
        answering(f"${len(info)}\r\n{info}\r\n".encode()) as port,
        closing(connect(named(f"redis://127.0.0.1:{port}"))) as client,
        capture_logs() as logs,
    ):
        wait_for_redis(client)
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("eviction_unknown", "warning")
    assert line["reason"].startswith("Redis does not tell its maxmemory-policy; make sure that it is noeviction")


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (b"-LOADING Redis is loading the dataset in memory\r\n", "is still loading its data"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "answers with an error: "),
        (b"$30\r\nredis_version:7.0.0\r\nloading:1\r\n", "is still loading its data"),
        (b"-ERR unknown command 'INFO', with args beginning with: \r\n", "does not know INFO; `notifier redis acl`"),
        (b"-ERR hunter2\r\n", "answers with an error: ResponseError"),
        (b"-ERR DB index is out of range\r\n", "has no database of this number: DB index is out of range; look at"),
    ],
)
def test_what_is_no_ready_redis_is_one_line(reply: bytes, says: str) -> None:
    """A Redis that loads, another protocol, an unknown error: one line each, no traceback."""
    with answering(reply) as port:
        assert says in refusal(named(f"redis://127.0.0.1:{port}"))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("unknown command `EVALSHA`, with args beginning with: `af743e`, `2`, `alice`, ", "EVALSHA"),
        ("Command # 1 (RPUSH alice unknown command) of pipeline caused error: unknown command 'RPUSH', with", "RPUSH"),
        ("@user_script: 973: Unknown Redis command called from Lua script", "a command of a script"),
        ("Unknown Redis command called from script script: f_9, on @user_script:9.", "a command of a script"),
    ],
)
def test_a_command_that_redis_does_not_know_is_named(error: str, says: str) -> None:
    """A host may have taken it away for all. Nothing of the call is told, which may name a user."""
    refused = redis.exceptions.ResponseError(error)
    assert str(unusable(refused)) == f"Redis does not know {says}; `notifier redis acl` prints what is needed"
    assert is_forbidden(refused)


def test_commands_say_as_a_worker_does_that_it_is_no_cluster(redis_server: EmbeddedRedis) -> None:
    """The words say what to look at; Redis's own are of its settings."""
    said = "tells no owner of a slot: it is no cluster, or its user may not run CLUSTER SLOTS"
    with closing(client_of(named(f"redis+cluster://127.0.0.1:{redis_server.port}"))) as client:
        for do in (partial(ask, client.ping), partial(check, client)):
            with pytest.raises(RedisUnusableError, match=said):
                do()


def test_a_right_that_a_script_lacks_is_named() -> None:
    """Redis 7.2 and newer say which; before the name stand words that older ones say of a key."""
    said = "ACL failure in script: User app has no permissions to run the 'zadd' command"
    refused = redis.exceptions.NoPermissionError(said)
    assert str(unusable(refused)).startswith("Redis refuses: its user may not run ZADD;")


def test_a_database_that_redis_does_not_have_is_told_to_producers_too() -> None:
    """They fail at their first command, where a worker fails at its start: both say where to look."""
    refused = unusable(redis.exceptions.ResponseError("DB index is out of range"))
    assert str(refused).endswith("; look at the end of redis.url")


def test_nothing_is_sent_twice() -> None:
    """A command whose answer is lost is not repeated: it may have been done."""
    received: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            while b"INCR" not in (data := connection.recv(65_536)):
                connection.sendall(b"+OK\r\n" * data.count(b"CLIENT"))
            received.append(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        with closing(connect(named(url))) as client, pytest.raises(redis.exceptions.ConnectionError):
            client.incr("a")
        thread.join()
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # another try would have come
            listener.accept()
    assert len(received) == 1


def test_certificates_without_tls_are_a_mistake(tmp_path: Path) -> None:
    """Who names an authority and no rediss:// believes in a TLS that is not there. A file that is missing is named."""
    text = "redis: {{url: '{}://127.0.0.1:1/0', ca_file: {}/ca.pem}}"
    with pytest.raises(SettingsError, match="ca_file is for TLS, and the URL is not: it would begin with rediss://"):
        connect(parse_settings(text.format("redis", tmp_path)).redis)
    with pytest.raises(SettingsError, match=r"redis\.ca_file: cannot read .*ca\.pem: No such file"):
        connect(parse_settings(text.format("rediss", tmp_path)).redis)
    with pytest.raises(SettingsError, match="cert_key_file: needs cert_file"):
        parse_settings("redis: {cert_key_file: /run/key.pem}")


def test_an_option_that_is_not_known_is_told_without_the_url() -> None:
    """A query that redis-py does not understand, or not as a text, or that would fail later, is refused by its name."""
    tls = ("ssl_ocsp_context", "ssl_min_version", "ssl_ciphers", "ssl_keyfile")
    for name in ("flavour", "socket_timeout", "retry", "retry_on_error", "credential_provider", "parser_class", *tls):
        with pytest.raises(SettingsError, match=f"option '{name}' that is not understood") as caught:
            connect(named(f"redis://:hunter2@127.0.0.1/0?{name}=hunter2"))
        assert "hunter2" not in str(caught.value)
    with pytest.raises(SettingsError, match=r"^the URL of Redis has an option that is not understood$"):
        connect(named("redis://127.0.0.1/0?protocol=9"))


def test_replies_are_as_they_are_read_here_whatever_the_url_asks_for() -> None:
    """Bytes, by RESP2: a URL is often shared with programs that want text."""
    asked = "decode_responses=yes&protocol=3&encoding=latin-1&encoding_errors=x"
    with closing(connect(named(f"redis://h?{asked}"))) as client:
        options = client.connection_pool.connection_kwargs
        assert (options["decode_responses"], options["protocol"]) == (False, 2)
        assert client.get_encoder().encode("é") == "é".encode()


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("redis://:hunter2@h:7000/1", "h:7000"),
        ("rediss://h", "h:6379"),
        ("unix:///s", "/s"),
        ("redis://[::1]:1", "[::1]:1"),
    ],
)
def test_an_address_is_where_and_nothing_else(url: str, where: str) -> None:
    """What is shown of a client is host and port, or the socket's path."""
    with closing(connect(named(url))) as client:
        assert address(client) == where


def test_a_redis_that_has_gone_is_told_by_who_was_connected() -> None:
    """In the system's word: the second try of an asyncio client loses the system's error."""

    async def ask(client: Any, running: ExitStack) -> None:
        async with client:
            await client.ping()
            running.close()
            (connection,) = client.connection_pool._available_connections
            assert await connection._reader.read() == b"", "it has heard of the end"
            await client.ping()

    with ExitStack() as running:
        server = running.enter_context(EmbeddedRedis())
        client = async_of(RedisSettings(url=server.url))
        with pytest.raises(redis.exceptions.ConnectionError) as refused:
            asyncio.run(ask(client, running))
    assert str(unusable(refused.value)) == f"Redis does not answer at 127.0.0.1:{server.port}: Connection refused"


def test_a_closed_asyncio_client_leaves_no_connection(server: EmbeddedRedis) -> None:
    """Whoever runs a worker in a process of its own making, such as a test, is not left with its sockets."""
    with closing(redis.Redis.from_url(f"redis://:hunter2@127.0.0.1:{server.port}")) as client:

        def connections() -> set[str]:
            return {at["id"] for at in client.client_list()}

        async def used() -> Any:
            other = asyncio_client(client)
            before = connections()
            await other.ping()
            (its_own,) = connections() - before
            await other.aclose()
            return other, its_own

        kept, its_own = asyncio.run(used())  # kept, so that no collector closes it in its own place
        eventually(lambda: its_own not in connections(), "the end of the connection")
        del kept


def test_a_connection_leaves_a_server_that_was_demoted(server: EmbeddedRedis) -> None:
    """A new one may find the primary behind the same name; the old one would be refused for ever."""
    url = f"redis://:hunter2@127.0.0.1:{server.port}"
    with closing(connect(named(url))) as client, closing(redis.Redis.from_url(url)) as admin:

        async def story() -> list[tuple[Any, Any]]:
            others = [async_of(named(url)), asyncio_client(client)]
            before = [client.client_id(), *[await other.client_id() for other in others]]
            admin.replicaof("127.0.0.1", 1)
            try:
                with pytest.raises(redis.exceptions.ResponseError, match="read only replica"):
                    client.eval("return redis.call('SET', 'k', '1')", 0)
                for other in others:
                    with pytest.raises(redis.exceptions.ReadOnlyError):
                        await other.set("k", "1")
                after = [client.client_id(), *[await other.client_id() for other in others]]
            finally:
                admin.replicaof("NO", "ONE")
            for other in others:
                await other.aclose()
            return list(zip(before, after, strict=True))

        found = asyncio.run(story())
    assert all(before != after for before, after in found)


def test_who_finds_no_connection_free_waits(redis_server: EmbeddedRedis) -> None:
    """Until one is given back, or for as long as for an answer."""
    one = "redis: {url: '" + redis_server.url + "?max_connections=1', socket_timeout: %s}"
    with connect(parse_settings(one % "100ms").redis) as client:
        kept = client.connection_pool.get_connection()
        with pytest.raises(redis.exceptions.ConnectionError, match="Too many connections"):
            client.ping()
        client.connection_pool.release(kept)
    with connect(parse_settings(one % "60s").redis) as client, ThreadPoolExecutor() as threads:
        kept = client.connection_pool.get_connection()
        answer = threads.submit(client.ping)
        client.connection_pool.release(kept)
        assert answer.result()
