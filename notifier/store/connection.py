"""Synchronous clients to Redis, with the options of this project, and one clear line where Redis cannot be used."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Final, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool

from notifier.errors import RedisAwayError, RedisUnusableError, SettingsError
from notifier.scripts import keys
from notifier.scripts.connection_wait import make_whole
from notifier.settings import redis_url
from notifier.store import cluster, sentinel, tags, tls
from notifier.store.sign_in import read_files_again
from notifier.units import clock_us

if TYPE_CHECKING:
    from notifier.settings import RedisSettings

T = TypeVar("T")

# 6.2 brought LMOVE, GETDEL and what the scripts use of ZRANGE.
OLDEST: Final = (6, 2)

MAX_CONNECTIONS: Final = 50  # a call that finds all of them in use waits for one

NO_EVICTION: Final = "noeviction"
EVICTS: Final = (
    "removes keys when it is full, accepted notifications among them (maxmemory-policy {}); set its maxmemory-policy"
    f" to {NO_EVICTION}"
)
POLICY_UNKNOWN: Final = (
    f"does not tell its maxmemory-policy; make sure that it is {NO_EVICTION}, or notifications are lost when it is full"
)
OUT_OF_MEMORY: Final = "is out of memory and takes nothing new; let the workers drain it, or raise its maxmemory"
TELLING: Final[dict[Any, Any]] = {redis.Connection: tls.PlainConnection, redis.SSLConnection: tls.TlsConnection}
OF_CLUSTER: Final = f"is a node of a cluster; write its URL as {redis_url.CLUSTER_FORM}"
NO_PRIMARY: Final = "no sentinel answers, or none knows a healthy primary of this name"
# After the primary's name, redis-py quotes the error of each sentinel: a word of it -> the text for people.
SENTINELS: Final = {
    "AuthenticationError": "the sentinels refuse the password; look at redis.sentinel_password_file",
    "CERTIFICATE_VERIFY_FAILED": "the certificate of the sentinels is not believed; look at redis.ca_file",
}
# The options that a URL may have: redis-py's, without those whose value is an object, and those that fail only later.
OPTIONS: Final = re.compile(
    r"host|port|path|db|username|password|protocol|decode_responses|encoding(_errors)?|client_name|max_connections|"
    r"socket_(connect_)?timeout|socket_keepalive|socket_read_size|health_check_interval|retry_on_timeout|"
    r"connection_class|ssl_(ca_certs|ca_data|ca_path|cert_reqs|certfile|check_hostname|keyfile|password)"
)
# These replace the URL's own options: programs that want text often use the same URL.
READ_AS: Final = {"protocol": 2, "decode_responses": False, "encoding": "utf-8", "encoding_errors": "strict"}
_OF_PIPELINE: Final = re.compile(r"^Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
# How Redis 6.2 and 7 refuse a user, also inside a script.
_FORBIDDEN: Final = re.compile(
    r"(?is).*no permissions? to run the '([\w|-]+)'|no permissions? to (?:access|call|run)|can't (?:run this|access)|"
    r"NOPERM|ACL failure"
)
# Redis names the command if a client calls it, but not if a script does.
_UNKNOWN: Final = re.compile(r"(?i)unknown (?:redis )?command(?: ['`]([\w|-]+))?")
_UNAUTHENTICATED: Final = "unauthenticated"  # a word of Redis's answer to a long command without a password
_CONNECTING: Final = re.compile(r"Error (?:-?\d+ )?connecting to (\S+)\. ")
_NUMBER: Final = re.compile(r"Error (\d+) connecting to \S+\. (?!.*SSL)")  # TLS has numbers of its own
# Errors of a Redis that answers but cannot serve a call now: out of memory, failing over, unable to persist, busy. Some
# have a class in redis-py (`WORDS`). The others, and errors inside scripts of Redis 6.2, are known by a word.
REFUSALS: Final = {
    "OOM": OUT_OF_MEMORY,
    "READONLY": "is a replica (READONLY); redis.url is to name its primary",
    "MISCONF": "cannot save to its disk and takes nothing new (MISCONF); its log says why",
    "NOREPLICAS": "has too few replicas and takes nothing new (NOREPLICAS); see its min-replicas-to-write",
    "BUSY": "is held up by somebody's script (BUSY); try again when it has ended",
}
WORDS: Final = {redis.exceptions.OutOfMemoryError: "OOM", redis.exceptions.ReadOnlyError: "READONLY"}
PASSING_WORDS: Final = re.compile(rf"\b({'|'.join(REFUSALS)})\b")
FAULTS: Final = (
    (
        redis.exceptions.AuthenticationError,
        "refuses the password; look at redis.password_file and NOTIFIER_REDIS_URL; each node has users of its own",
    ),
    (redis.exceptions.NoPermissionError, "does not let this user run INFO; grant it, or use another user"),
    (redis.exceptions.BusyLoadingError, "is still loading its data; try again when it is done"),
    (redis.exceptions.TimeoutError, "does not answer in time"),
    (MasterNotFoundError, "is unknown there: {}"),
)


def connect(config: RedisSettings) -> redis.Redis:
    """Return a client, not yet connected; replies are bytes, as RQ wants them.

    Raise SettingsError if the URL has an option that redis-py does not know, if the password file cannot be read, or
    if this process uses another `redis.prefix` already.
    """
    use_keys_of(config)
    return client_of(config)


def client_of(config: RedisSettings, beside: redis.Redis | None = None) -> redis.Redis:
    """As `connect`, but do not set how this process names its keys. beside: see `cluster.client_of`."""
    if config.partitions > 1 and not redis_url.is_cluster(config.url):
        raise SettingsError(f"redis.partitions is for a Redis Cluster, whose URL would be {redis_url.CLUSTER_FORM}")
    options = connection_options(config)
    # A command whose answer was lost may have run: sending it again could count or enqueue twice. So the
    # client repeats nothing. The worker's loop and the producer know what is idempotent, and try again.
    options |= {"retry": Retry(NoBackoff(), 0), "max_connections": MAX_CONNECTIONS}
    try:
        if redis_url.is_cluster(config.url):
            tag = tags.tag_of(config.partition or 0, config.partitions)
            client = cluster.client_of(tag, redis_url.parse(config.url), options, beside)
        elif redis_url.is_sentinel(config.url):
            client = sentinel.primary(redis_url.parse(config.url), options, config.read_sentinel_password)
        else:
            _refuse_others(config.url, options)
            client = redis.Redis.from_url(config.url, **options)
            pool = client.connection_pool
            pool.connection_class = TELLING.get(pool.connection_class, pool.connection_class)
            pool.connection_class(**pool.connection_kwargs)  # raises if an option is wrong
            pool.connection_kwargs |= READ_AS
        make_whole(client)
        read_files_again(client, config)  # a password in the URL goes before the file's
    except (TypeError, ValueError, redis.exceptions.RedisError) as error:
        # Quote only an option's name of the text: a URL may hold a password.
        name = re.search(r"'(\w{1,40})'", str(error))
        which = f" {name[1]!r}" if name else ""
        raise SettingsError(f"the URL of Redis has an option{which} that is not understood") from None
    return client


def _refuse_others(url: str, beside: Mapping[str, Any]) -> None:
    names = parse_url(url).keys()  # type: ignore[no-untyped-call]
    for name in names:
        if not OPTIONS.fullmatch(name) or (name == "ssl_keyfile" and "ssl_certfile" not in {*names, *beside}):
            raise TypeError(f"'{name}'")


def connection_options(config: RedisSettings) -> dict[str, Any]:
    """Return the options of every connection, whichever client opens it.

    Raise SettingsError if a file for TLS cannot be used.
    """
    timeout = config.socket_timeout_us / 1_000_000
    options: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        # Redis-py 5 to 8 have different defaults; this makes the shapes of replies equal.
        "protocol": 2,
    }
    options |= config.tls_options()
    if not config.url.startswith("unix:"):
        options["socket_keepalive"] = True
    return options


def use_keys_of(config: RedisSettings) -> None:
    """Set how this process names its keys. Raise SettingsError if it names them otherwise already.

    Raise it also if the fleet has several partitions, and the settings name none of them.
    """
    if config.partitions > 1 and config.partition is None:
        raise SettingsError(
            f"this fleet is in {config.partitions} partitions (redis.partitions), and this works with one Redis, or one"
            " slot of a cluster, alone"
        )
    if redis_url.is_cluster(config.url):
        prefixes = tags.prefixes_of(config, config.partition or 0)
    else:
        prefixes = keys.Prefixes(config.prefix, os.environ.get(keys.RQ_VARIABLE, keys.RQ))
    keys.use_prefixes(prefixes)


def address(client: redis.Redis) -> str:
    """Return where a client connects to, `host:port` or the socket's path; never user or password."""
    if cluster.is_followed(client.connection_pool):
        return cluster.described(client.connection_pool)
    if isinstance(client.connection_pool, SentinelConnectionPool):
        return sentinel.described(client.connection_pool)
    kwargs = client.connection_pool.connection_kwargs
    if "path" in kwargs:
        return str(kwargs["path"])
    host = str(kwargs.get("host", "localhost"))
    return f"{f'[{host}]' if ':' in host else host}:{kwargs.get('port', 6379)}"


def ask(do: Callable[[], T]) -> T:
    """Return what `do` asks of Redis. If the connection fails, as a kept one may have been closed, do it once more.

    `do` must be idempotent. Raise RedisUnusableError if Redis does not answer.
    """
    with redis_answers():
        try:
            return do()
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
            return do()


@contextmanager
def redis_answers() -> Iterator[None]:
    """Raise RedisUnusableError in place of redis-py's errors in this block."""
    try:
        yield
    except redis.exceptions.RedisError as error:
        raise unusable(error) from error


def ask_each(client: Any, of: Iterable[T], queue: Callable[[Any, T], object]) -> list[Any]:
    """Send a command for each item in one round trip; return the replies. queue: puts an item's into a pipeline."""
    with client.pipeline(transaction=False) as pipe:
        for each in of:
            queue(pipe, each)
        replies: list[Any] = pipe.execute()
    return replies


def pieces(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Split items into lists of at most `size`, such as for one round trip each."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def time_us(client: Any) -> int:
    """The time by Redis's clock, in µs since 1970."""
    return clock_us(client.time())


def unusable(error: redis.exceptions.RedisError) -> RedisUnusableError:
    """Return the error for people in place of one of redis-py's."""
    # In a pipeline's error, redis-py quotes the command with its key, which may name a user.
    said = _OF_PIPELINE.sub("", str(error))
    if why := refusal(error) or _lack(error):
        return RedisUnusableError(f"Redis {why}")
    if isinstance(error, redis.exceptions.AuthenticationError) or _UNAUTHENTICATED in str(error):
        return RedisUnusableError(f"Redis {_why(error)}")
    if said.startswith("No master found for"):  # both kinds of client; redis-py's own objects follow in the text
        said = f"{said.partition(' : ')[0]}: {_no_primary(error)}"
    if found := _FORBIDDEN.search(said):
        what = f"run {found[1].upper()}" if found[1] else "use a key or channel that is needed"
        return RedisUnusableError(f"Redis refuses: its user may not {what}; `notifier redis acl` prints what to grant")
    if tried := _CONNECTING.match(said):
        return RedisAwayError(f"Redis does not answer at {tried[1]}: {_system_error(error)}")
    if is_away(error):
        return RedisAwayError(f"Redis does not answer: {said}")
    does = "refuses" if isinstance(error, redis.exceptions.ResponseError) else "does not answer"
    return RedisUnusableError(f"Redis {does}: {said}")


def refusal(error: Exception) -> str:
    """Why Redis answers but cannot serve the call now, for people; '' for other errors."""
    found = PASSING_WORDS.search(_OF_PIPELINE.sub("", str(error)))
    word = next((word for kind, word in WORDS.items() if isinstance(error, kind)), found[1] if found else "")
    return REFUSALS.get(word, "")


def _lack(error: Exception) -> str:
    """Which command or database this Redis lacks for every user, for people; '' for other errors."""
    if isinstance(error, cluster.NotAClusterError):
        return "tells no owner of a slot: it is no cluster, or its user may not run CLUSTER SLOTS"
    if isinstance(error, redis.exceptions.MovedError):  # a client of a cluster follows it
        return OF_CLUSTER
    if "DB index is out of range" in str(error):
        return "has no database of this number: DB index is out of range; look at the end of redis.url"
    found = _UNKNOWN.search(_OF_PIPELINE.sub("", str(error)))
    which = found and (found[1] or "a command of a script")
    return f"does not know {which}; `notifier redis acl` prints what is needed" if which else ""


def _no_primary(error: Exception) -> str:
    return next((why for word, why in SENTINELS.items() if word in str(error)), NO_PRIMARY)


def unreadable(error: Exception) -> RedisUnusableError:
    """Return the error for people after a value in Redis could not be read as a time, number or text."""
    at = extract_tb(error.__traceback__)[-1]
    where = f"{type(error).__name__} in {Path(at.filename).name}:{at.lineno}"
    return RedisUnusableError(f"Redis holds something that cannot be read ({where}); notifier audit may find it")


def is_forbidden(error: redis.exceptions.RedisError) -> bool:
    """Whether Redis refuses a command to this user, or to every user, also inside a script."""
    return bool(_FORBIDDEN.search(str(error)) or _lack(error))


def check(client: redis.Redis) -> None:
    """Raise RedisUnusableError, one clear line, unless Redis answers, is 6.2 or newer, and evicts no keys.

    The error is a RedisAwayError if Redis may come back by itself.
    """
    where = address(client)
    try:
        info: dict[str, Any] = client.info()
        # While Redis loads its data, it answers only INFO.
        if info.get("loading"):
            raise redis.exceptions.BusyLoadingError
    except redis.exceptions.RedisError as error:
        kind = RedisAwayError if comes_back(error) else RedisUnusableError
        raise kind(f"Redis at {where} {_why(error)}") from None
    except (OSError, ValueError) as error:  # a host name that cannot be encoded, a path too long
        raise RedisUnusableError(f"Redis at {where} cannot be reached: {type(error).__name__}") from None
    mode = info.get("redis_mode") or info.get("server_mode")  # the second is Valkey's
    if mode == "cluster" and not cluster.is_followed(client.connection_pool):
        raise RedisUnusableError(f"Redis at {where} {OF_CLUSTER}")
    if mode == "sentinel":
        raise RedisUnusableError(f"Redis at {where} is a sentinel; write its URL as {redis_url.SENTINEL_FORM}")
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        raise RedisUnusableError(f"Redis at {where} is version {version or 'unknown'}; 6.2 or newer is needed")
    if policy := evicts_by(info):
        raise RedisUnusableError(f"Redis at {where} {EVICTS.format(policy)}")


def check_same(client: redis.Redis, config: RedisSettings) -> None:
    """Raise SettingsError if RQ's command, by its own options, has connected to another Redis than redis.url names."""
    both = (client, client_of(config))
    databases = [each.connection_pool.connection_kwargs.get("db") or 0 for each in both]
    with suppress(redis.exceptions.RedisError):
        if databases[0] == databases[1] and len({each.info("server").get("run_id") for each in both}) == 1:
            return
    at, named = (f"{address(each)}/{database}" for each, database in zip(both, databases, strict=True))
    raise SettingsError(
        f"RQ has connected to Redis at {at}, but redis.url names {named}: give it to rq worker as --url"
    )


def evicts_by(info: Mapping[str, Any]) -> str:
    """The policy by which Redis evicts keys, as its INFO names it; '' where it evicts none, or does not tell."""
    policy = str(info.get("maxmemory_policy", NO_EVICTION))
    return "" if policy == NO_EVICTION else policy


def eviction_warning(memory: Mapping[str, Any]) -> str:
    """Return a warning if Redis evicts keys, or does not tell whether it does; else ''. memory: of INFO."""
    if policy := evicts_by(memory):
        return f"Redis {EVICTS.format(policy)}"
    return "" if "maxmemory_policy" in memory else f"Redis {POLICY_UNKNOWN}"


def is_away(error: redis.exceptions.RedisError) -> bool:
    """Whether Redis may come back by itself: it cannot be reached, or is loading its data."""
    lasting = (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError)
    passing = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)
    is_lasting = isinstance(error, lasting) or _no_primary(error) != NO_PRIMARY
    return isinstance(error, passing) and not is_lasting


def is_passing(error: Exception) -> bool:
    """Whether the caller should ask again later: Redis answered, did nothing, and may do it another time."""
    return isinstance(error, redis.exceptions.MasterDownError) or bool(refusal(error))


def comes_back(error: redis.exceptions.RedisError) -> bool:
    """Whether a program that starts waits for this Redis. It reports a full Redis or a replica instead of waiting."""
    told = (redis.exceptions.OutOfMemoryError, redis.exceptions.ReadOnlyError)
    return is_away(error) or (is_passing(error) and not isinstance(error, told))


def _why(error: redis.exceptions.RedisError) -> str:
    text = str(error).upper()
    if "NOAUTH" in text or "AUTHENTICATION REQUIRED" in text or _UNAUTHENTICATED in str(error):
        return "wants a password; set redis.password_file or NOTIFIER_REDIS_URL"
    if "WITHOUT ANY PASSWORD CONFIGURED" in text:
        return "has no password, but one is given; look at redis.password_file and NOTIFIER_REDIS_URL"
    if isinstance(error, tls.TlsMismatchError):
        return str(error).removeprefix("it ")
    for fault, meaning in FAULTS:
        if isinstance(error, fault):
            return meaning.format(_no_primary(error))
    if isinstance(error, redis.exceptions.ConnectionError):
        return f"cannot be reached: {_system_error(error)}"
    # No other text is shown, as it may hold a secret.
    return refusal(error) or _lack(error) or f"answers with an error: {type(error).__name__}"


def _system_error(error: BaseException) -> str:
    """Return the operating system's reason, as redis-py's own text repeats the address."""
    cause: BaseException | None = error
    while isinstance(cause, redis.exceptions.RedisError):  # asyncio wraps its own, and a second try has a first
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLError):  # its numbers are no errno
        return cause.strerror or str(cause)
    if isinstance(cause, OSError) and cause.strerror:
        number = cause.errno or 0
        return os.strerror(number) if number > 0 else cause.strerror  # asyncio puts its own text into strerror
    if found := _NUMBER.match(str(error)):  # in asyncio, an error of a second try loses the system's
        return os.strerror(int(found[1]))
    return "the connection failed" if cause is None else type(cause).__name__
