"""The simulators in one process: ``python -m notifier.simulators --folder DIR``."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from notifier.simulators.apns import ApnsChannelsSimulator, ApnsSimulator
from notifier.simulators.certificates import (
    make_apns_key,
    make_certificates,
    make_secret,
    make_webpush_key,
    write_whole,
)
from notifier.simulators.control import Control, answers, tell
from notifier.simulators.expo import ExpoSimulator
from notifier.simulators.faults import UnusableError, table
from notifier.simulators.fcm import FcmSimulator, make_service_account
from notifier.simulators.hms import HmsSimulator
from notifier.simulators.simulator import Simulator
from notifier.simulators.webpush import WebPushSimulator
from notifier.simulators.wire import WireLog
from notifier.testing.ports import free_port

TEAM_ID: Final = "SIMTEAM001"
KEY_ID: Final = "SIMULATED1"
TOPIC: Final = "com.example.app"
PROJECT_ID: Final = "simulated-project"
HMS_APP: Final = "104200001"
HMS_PROJECT: Final = "388421841"
SUBJECT: Final = "mailto:simulator@example.com"
ANNOUNCEMENT: Final = "simulators.json"
CONFIG: Final = "notifier.yaml"
WIRE_LOG: Final = "wire.jsonl"

DESCRIPTION: Final = """\
Run servers like those of APNs, FCM, HMS Push, Expo and a web push service on 127.0.0.1 until SIGTERM or Ctrl-C.
They check what the real ones check, log each message as it arrives, and go wrong in the ways that you name.

  python -m notifier.simulators --folder sim &
  NOTIFIER_CONFIG=sim/notifier.yaml notifier worker

The folder gets throw-away certificates and keys, simulators.json (the addresses; also printed, one line, once
all listens), notifier.yaml (a configuration that sends to them) and wire.jsonl (what arrived). All but the last
are written anew at each start, with the ports of the last time where these are free.
"""
EPILOG: Final = """\
what goes wrong, while they run:
  python -m notifier.simulators --folder sim --tell '{"apns": {"silent": true}}'
from a program: a line of JSON into the Unix socket "control" in the folder, a line back, and a line for each
message that arrives

  {"scripts": {DEVICE TOKEN: REPLY or [REPLY, ...]}}  its first, second... message; the last repeats; null ends it
      REPLY is a fault's name (--faults lists them), or an object: any of fault, status, reason, headers,
      delay_ms, drop, silent, retry_at_s, go_away, reset. "/token" is Google's token endpoint,
      "/oauth2/v3/token" Huawei's. A browser's token is its name: POST /subscribe/NAME to the web push
      service returns its subscription.
  {"apns": {...}, "fcm": {...}, "webpush": {...}, "hms": {...}, "expo": {...}} with any of
      fail: {FAULT: SHARE}  that share of the messages (0 to 1) meets that fault; {} ends it
      latency_ms            wait before each answer
      rate                  serve so many messages a second, the others stand in a queue; 0 ends it
      listening             false: refuse connections, until true
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
            asyncio.run(_serve(options.folder.resolve()))
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
    )
    add = parser.add_argument
    add("--folder", type=Path, metavar="DIR", help="for certificates, keys, configuration and log; made if missing")
    add("--faults", action="store_true", help="list the faults by name, and end")
    add("--tell", metavar="JSON", help="tell those that run in the folder, print their state, and end; {} only prints")
    return parser


def _tell(folder: Path, text: str) -> None:
    path = folder / ANNOUNCEMENT
    try:
        control = Path(json.loads(path.read_text(encoding="utf-8"))["control"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UnusableError(f"{path} is missing or unreadable: no simulators run in this folder") from None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"--tell is no JSON: {error}") from None
    print(json.dumps(tell(control, document), indent=2))  # noqa: T201 - asked for


async def _serve(folder: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    socket = folder / "control"
    if answers(socket):
        raise UnusableError(f"simulators already run there, listening on {socket}; end them, or give another --folder")
    try:
        servers, providers, log = _make(folder)
    except OSError as error:
        raise UnusableError(f"cannot write {error.filename}: {error.strerror}") from None
    control = Control(socket, log, servers[: len(providers)])
    try:
        for server in servers:
            await server.start()
        await control.start()
        _announce(folder, providers, {"wire_log": str(folder / WIRE_LOG), "control": str(socket)})
        await stop.wait()
    except OSError as error:
        raise UnusableError(f"cannot listen: {error.strerror or error}") from None
    finally:
        await control.close()
        for server in servers:
            await server.close()
        log.close()


def _make(folder: Path) -> tuple[list[Simulator], dict[str, dict[str, Any]], WireLog]:
    """Make the servers with new keys, the sections of a worker's settings that lead to them, and the log.

    The last server manages the channels; its address stands in the section of APNs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    certificates, ports, log = make_certificates(folder), _ports_of_before(folder), WireLog(folder / WIRE_LOG)

    def shared(name: str) -> dict[str, Any]:
        return {"certificates": certificates, "log": log, "port": free_port(ports.get(name, 0))}

    (p8, apple), (vapid, public_key) = make_apns_key(folder, KEY_ID), make_webpush_key(folder)
    secret, access_token = make_secret(folder, "hms-secret"), make_secret(folder, "expo-token")
    apns = ApnsSimulator(topics={TOPIC}, team_keys={KEY_ID: (TEAM_ID, apple)}, **shared("apns"))
    fcm = FcmSimulator(**shared("fcm"))
    webpush = WebPushSimulator(public_key=public_key, **shared("webpush"))
    hms = HmsSimulator(apps={HMS_APP: secret.read_text()}, projects={HMS_PROJECT: HMS_APP}, **shared("hms"))
    expo = ExpoSimulator(access_token=access_token.read_text(), **shared("expo"))
    channels = ApnsChannelsSimulator(apns, **shared("channels"))
    account = make_service_account(folder, f"{fcm.url}/token", PROJECT_ID)
    fcm.trust(account)
    sign_in = {"key_file": str(p8), "key_id": KEY_ID, "team_id": TEAM_ID}
    sections: dict[Simulator, dict[str, Any]] = {
        apns: {"channels_endpoint": channels.url, **sign_in, "topic": TOPIC},
        fcm: {"service_account": str(account)},
        webpush: {"key_file": str(vapid), "public_key": public_key, "subject": SUBJECT},
        hms: {"token_endpoint": hms.url, "app_id": HMS_APP, "secret_file": str(secret)},
        expo: {"access_token_file": str(access_token)},
    }
    ca_file = str(certificates.ca_file)
    providers = {
        server.platform: {"endpoint": server.url, "ca_file": ca_file, **section} for server, section in sections.items()
    }
    return [*sections, channels], providers, log


def _ports_of_before(folder: Path) -> dict[str, int]:
    """Return the ports of the last run in this folder, so that a copy of the configuration stays right."""
    try:
        before = json.loads((folder / ANNOUNCEMENT).read_text(encoding="utf-8"))
        endpoints = {name: section["endpoint"] for name, section in before.items() if isinstance(section, dict)}
        endpoints["channels"] = before["apns"]["channels_endpoint"]
        return {name: urlsplit(endpoint).port or 0 for name, endpoint in endpoints.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # no earlier run, or somebody changed the file: choose new ports


def _announce(folder: Path, told: Mapping[str, dict[str, Any]], more: Mapping[str, str]) -> None:
    clients = {"apns": "h2", "fcm": "pyfcm", "hms": "http", "expo": "http"}
    providers = {name: {"client": client, **told[name]} for name, client in clients.items()}
    if find_spec("pywebpush"):  # an extra: without its package no worker would start
        endpoint, kept = told["webpush"]["endpoint"], ("key_file", "subject", "ca_file")
        section = {key: told["webpush"][key] for key in kept}
        providers["webpush"] = {"client": "pywebpush", **section, "hosts": [endpoint.removeprefix("https://")]}
    config = {"categories": {"default": {"lane": "default"}}, "providers": providers}
    head = "# Sends to the simulators of this folder; written anew at each start: copy it to change it.\n"
    write_whole(folder / CONFIG, (head + yaml.safe_dump(config, sort_keys=False)).encode())
    write_whole(folder / ANNOUNCEMENT, f"{json.dumps({**told, **more}, indent=2)}\n".encode())
    sys.stdout.write(json.dumps({**told, **more}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
