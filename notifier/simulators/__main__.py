"""The simulators in one process: ``python -m notifier.simulators --folder DIR``."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import yaml

from notifier.notification.notification import NAME_FORM
from notifier.simulators.apns import ApnsChannelsSimulator, ApnsSimulator
from notifier.simulators.certificates import (
    Certificates,
    make_apns_key,
    make_certificates,
    make_secret,
    make_webpush_key,
)
from notifier.simulators.control import Control, answers, tell
from notifier.simulators.expo import ExpoSimulator
from notifier.simulators.faults import FAULTS, UnusableError, table
from notifier.simulators.fcm import FcmSimulator, make_service_account
from notifier.simulators.hms import HmsSimulator
from notifier.simulators.simulator import HOST
from notifier.simulators.webpush import WebPushSimulator
from notifier.simulators.wire import WireLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from notifier.simulators.simulator import Simulator

TEAM_ID: Final = "SIMTEAM001"
KEY_ID: Final = "SIMULATED1"
TOPIC: Final = "com.example.app"
PROJECT_ID: Final = "simulated-project"
HMS_APP: Final = "104200001"
HMS_PROJECT: Final = "388421841"
SUBJECT: Final = "mailto:simulator@example.com"
PLATFORMS: Final = ("apns", "fcm", "webpush", "hms", "expo")
ANNOUNCEMENT: Final = "simulators.json"
A_PORT: Final = "default: that of the last time in this folder, or a free one"
CONFIG: Final = "notifier.yaml"

DESCRIPTION: Final = """\
Run servers like those of APNs, FCM, HMS Push, Expo and a web push service on 127.0.0.1 until SIGTERM or Ctrl-C.
They check what the real ones check, log each message as it arrives, and go wrong in the ways that you name.

  python -m notifier.simulators --folder sim &
  NOTIFIER_CONFIG=sim/notifier.yaml notifier worker

The folder gets throw-away certificates and keys, simulators.json (the addresses; also printed, one line, once
all listens), notifier.yaml (a configuration that sends to them) and wire.jsonl (what arrived). All but the last
are written anew at each start. Each --app NAME is one more app in that configuration, with the topic
com.example.NAME and the project simulated-NAME.
"""
EPILOG: Final = """\
what goes wrong, while they run:
  python -m notifier.simulators --folder sim --tell '{"apns": {"silent": true}}'
from the start: --with and the same; from a program: a line of JSON into the Unix socket "control" in the folder,
a line back, and a line for each message that arrives

  {"scripts": {DEVICE TOKEN: REPLY or [REPLY, ...]}}  its first, second... message; the last repeats; null ends it
      REPLY is a fault's name (--faults lists them), or an object: any of fault, status, reason, headers,
      delay_ms, drop, silent, retry_at_s, go_away, reset. "/token" is Google's token endpoint,
      "/oauth2/v3/token" Huawei's. A browser's token is its name: POST /subscribe/NAME to the web push
      service returns its subscription.
  {"apns": {...}, "fcm": {...}, "webpush": {...}, "hms": {...}, "expo": {...}} with any of
      fail: {FAULT: SHARE}  that share of the messages (0 to 1) meets that fault; {} ends it
      latency_ms            wait before each answer
      rate                  serve so many messages a second, the others stand in a queue; 0 ends it
      listening, refuse_s   false: refuse connections, until true; or for so many seconds
      cut: true             cut all connections now
      silent                true: nobody gets another byte, but no connection is closed
      idle_s                a connection unused for so long goes silent
      wrong_name            true: TLS shows another host's certificate
      expire_tokens: true   refuse the credentials that were accepted so far
    apns alone:
      go_away: true         GOAWAY to all; or {"keep": 0.5, "reason": "Shutdown"}: the rest is not processed
      max_streams           at once on a connection, once a provider token was accepted
      window_bytes, window_updates: false   small windows; windows that never open again
      token_update_s        1200 as Apple's: a new provider token within so many seconds is refused
    fcm and hms alone:
      token_lifetime_s      of access tokens
    expo alone:
      rate_limit            600 as Expo's: more messages in a second are refused
docs/how-to/simulators.md rehearses an outage, step by step.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulators, or talk to them; return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.folder is None and not options.faults:
        parser.error("--folder is missing: the folder for certificates, keys and the log")
    try:
        if options.faults:
            print(table())  # noqa: T201 - asked for
        elif options.tell is not None:
            _tell(options.folder, options.tell)
        else:
            asyncio.run(_serve(options))
    except UnusableError as error:
        sys.stderr.write(f"notifier.simulators: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m notifier.simulators",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="python -m notifier.simulators --folder DIR [options]",
    )
    add = parser.add_argument
    add("--folder", type=Path, metavar="DIR", help="for certificates, keys, configuration and log; made if missing")
    add("--faults", action="store_true", help="list the faults by name, and end")
    add(
        "--tell",
        metavar="JSON",
        help="tell those that run in the folder, print their state, and end; {} changes nothing",
    )
    add("--with", dest="begin", metavar="JSON", default="{}", help="begin like that")
    add("--scripts", type=Path, metavar="FILE", help="a file with what would stand under scripts")
    add("--fail", action="append", default=[], metavar="FAULT=SHARE", help="on every server that can; may be repeated")
    add("--seed", type=int, default=1, metavar="N", help="of the chances; the same seed fails the same messages")
    add("--latency-ms", type=_latency, default=0.0, metavar="F", help="wait before each answer, in milliseconds")
    add("--wire-log", type=Path, metavar="FILE", help="arrivals as JSON lines; default: wire.jsonl in the folder")
    add("--control", type=Path, metavar="FILE", help="the Unix socket to tell them things by; default: in the folder")
    add(
        "--app", action="append", type=_app, default=[], metavar="NAME", help="an app beside the first; may be repeated"
    )
    for name in PLATFORMS:
        add(f"--{name}-port", type=_port, default=0, metavar="N", help=A_PORT)
    add("--apns-channels-port", type=_port, default=0, metavar="N", help=A_PORT)
    return parser


def _port(text: str) -> int:
    port = int(text)
    if port not in range(65_536):
        raise argparse.ArgumentTypeError(f"{port} is not a port: give 0 to 65535")
    return port


def _app(text: str) -> str:
    if not NAME_FORM.fullmatch(text) or "_" in text:  # which no bundle id may have
        raise argparse.ArgumentTypeError(f"{text!r} is not an app's name: use a-z, 0-9 and '-'")
    return text


def _latency(text: str) -> float:
    latency_ms = float(text)
    if not 0 <= latency_ms < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a latency: give milliseconds, 0 or more")
    return latency_ms


def _tell(folder: Path, text: str) -> None:
    path = folder / ANNOUNCEMENT
    try:
        control = Path(json.loads(path.read_text(encoding="utf-8"))["control"])
    except (OSError, ValueError, KeyError):
        raise UnusableError(f"{path} is missing or unreadable: no simulators run in this folder") from None
    print(json.dumps(tell(control, _json("--tell", text)), indent=2))  # noqa: T201 - asked for


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys and certificates that the servers share with those who send to them; written anew at each start."""

    certificates: Certificates
    apns: tuple[Path, str]
    webpush: tuple[Path, str]
    hms_secret: Path
    expo_token: Path

    @classmethod
    def make(cls, folder: Path) -> _Keys:
        return cls(
            make_certificates(folder),
            make_apns_key(folder, KEY_ID),
            make_webpush_key(folder),
            make_secret(folder, "hms-secret"),
            make_secret(folder, "expo-token"),
        )


class _Servers(NamedTuple):
    apns: ApnsSimulator
    fcm: FcmSimulator
    webpush: WebPushSimulator
    hms: HmsSimulator
    expo: ExpoSimulator


async def _serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    orders = {
        "--with": _json("--with", options.begin),
        f"--scripts {options.scripts}": _scripts(options.scripts),
        "--fail": _failures(options.fail),
    }
    folder = options.folder.resolve()
    wire_log = (options.wire_log or folder / "wire.jsonl").resolve()
    told_at = (options.control or folder / "control").resolve()
    if answers(told_at):
        raise UnusableError(f"simulators already run there, listening on {told_at}; end them, or give another --folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        keys, log = _Keys.make(folder), WireLog(wire_log)
    except OSError as error:
        raise UnusableError(f"cannot write {error.filename}: {error.strerror}") from None
    servers = _make_servers(options, keys, log)
    control = Control(told_at, log, servers)
    channels = ApnsChannelsSimulator(
        servers.apns, certificates=keys.certificates, log=log, port=options.apns_channels_port
    )
    try:
        for server in servers:
            await _start(server, f"--{server.platform}-port", getattr(options, f"{server.platform}_port"))
        await _start(channels, "--apns-channels-port", options.apns_channels_port)
        await _start(control, "--control", told_at)
        for option, order in orders.items():
            await _begin(control, option, order)
        providers = _make_providers(options.app, folder, keys, servers)
        providers["apns"]["channels_endpoint"] = channels.url
        _announce(folder, {**providers, "wire_log": str(wire_log), "control": str(told_at)})
        await stop.wait()
    finally:
        await control.close()
        for server in (*servers, channels):
            await server.close()
        log.close()


def keep_ports(options: argparse.Namespace, folder: Path) -> None:
    """Take the ports of the last time again, where they are free: a copy of the configuration stays right."""
    try:
        before = json.loads((folder / ANNOUNCEMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    used = {f"{name}_port": before.get(name, {}).get("endpoint") for name in PLATFORMS}
    used["apns_channels_port"] = before.get("apns", {}).get("channels_endpoint")
    for option, endpoint in used.items():
        if endpoint and not getattr(options, option):
            setattr(options, option, _free(urlsplit(endpoint).port or 0))


def _free(port: int) -> int:
    """Return the port, or 0 where it is taken."""
    try:
        with socket.create_server((HOST, port)):
            return port
    except OSError:
        return 0


def _make_servers(options: argparse.Namespace, keys: _Keys, log: WireLog) -> _Servers:
    keep_ports(options, options.folder)
    shared: dict[str, Any] = {
        "certificates": keys.certificates,
        "log": log,
        "latency_ms": options.latency_ms,
        "seed": options.seed,
    }
    return _Servers(
        ApnsSimulator(
            topics={TOPIC, *_topics(options.app).values()},
            team_keys={KEY_ID: (TEAM_ID, keys.apns[1])},
            port=options.apns_port,
            **shared,
        ),
        FcmSimulator(project_id=PROJECT_ID, port=options.fcm_port, **shared),
        WebPushSimulator(public_key=keys.webpush[1], port=options.webpush_port, **shared),
        HmsSimulator(
            apps={HMS_APP: keys.hms_secret.read_text()},
            projects={HMS_PROJECT: HMS_APP},
            port=options.hms_port,
            **shared,
        ),
        ExpoSimulator(access_token=keys.expo_token.read_text(), port=options.expo_port, **shared),
    )


def _topics(apps: Sequence[str]) -> dict[str, str]:
    return {app: f"com.example.{app}" for app in apps}


def _make_providers(apps: Sequence[str], folder: Path, keys: _Keys, servers: _Servers) -> dict[str, Any]:
    """Return the settings by which a worker finds each server; Google's is told whom to trust."""
    token_url, fcm = f"{servers.fcm.url}/token", servers.fcm
    account = make_service_account(folder, token_url, PROJECT_ID)
    accounts = {
        app: make_service_account(folder, token_url, f"simulated-{app}", f"service-account-{app}") for app in apps
    }
    for trusted in (account, *accounts.values()):
        fcm.trust(trusted)
    of_each: dict[str, dict[str, Any]] = {
        "apns": {
            "key_file": str(keys.apns[0]),
            "key_id": KEY_ID,
            "team_id": TEAM_ID,
            "topic": TOPIC,
            **_apps(_topics(apps), "topic"),
        },
        "fcm": {"service_account": str(account), **_apps(accounts, "service_account")},
        "webpush": {"key_file": str(keys.webpush[0]), "public_key": keys.webpush[1], "subject": SUBJECT},
        "hms": {"token_endpoint": servers.hms.url, "app_id": HMS_APP, "secret_file": str(keys.hms_secret)},
        "expo": {"access_token_file": str(keys.expo_token)},
    }
    ca_file = str(keys.certificates.ca_file)
    return {
        server.platform: {"endpoint": server.url, "ca_file": ca_file, **of_each[server.platform]} for server in servers
    }


def _scripts(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UnusableError(f"--scripts: cannot read {path}: {error}") from None
    return {"scripts": _json(f"--scripts {path}", text)}


def _failures(given: Sequence[str]) -> dict[str, Any]:
    fail: dict[str, dict[str, float]] = {}
    for text in given:
        name, _, share = text.partition("=")
        try:
            for platform in [each for each in PLATFORMS if each in FAULTS[name].replies]:
                fail.setdefault(platform, {})[name] = float(share)
        except (KeyError, ValueError):
            raise UnusableError(
                f"--fail {text}: give a fault that --faults lists and a share, as in cut=0.05"
            ) from None
    return {platform: {"fail": shares} for platform, shares in fail.items()}


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UnusableError(f"{where} is no JSON: {error}") from None


async def _begin(control: Control, option: str, order: object) -> None:
    try:
        await control.tell(order)
    except UnusableError as error:
        raise UnusableError(f"{option}: {error}") from None


async def _start(server: Simulator | Control, option: str, where: int | Path) -> None:
    try:
        await server.start()
    except OSError as error:
        raise UnusableError(f"{option} {where}: cannot listen there: {error.strerror or error}") from None


def _apps(given: Mapping[str, object], key: str) -> dict[str, Any]:
    return {"apps": {app: {key: str(value)} for app, value in given.items()}} if given else {}


def _announce(folder: Path, what: dict[str, Any]) -> None:
    providers = {"apns": {"client": "h2", **what["apns"]}, "fcm": {"client": "pyfcm", **what["fcm"]}}
    providers |= {name: {"client": "http", **what[name]} for name in ("hms", "expo")}
    if find_spec("pywebpush"):  # an extra: without it no worker would start
        told = what["webpush"]
        kept = {key: told[key] for key in ("key_file", "subject", "ca_file")}
        providers["webpush"] = {"client": "pywebpush", **kept, "hosts": [told["endpoint"].removeprefix("https://")]}
    config = {"categories": {"default": {"lane": "default"}}, "providers": providers}
    (folder / CONFIG).write_text(
        "# Sends to the simulators of this folder; written anew at each start: copy it to change it.\n"
        + yaml.safe_dump(config, sort_keys=False),
        encoding="utf-8",
    )
    (folder / ANNOUNCEMENT).write_text(json.dumps(what, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
