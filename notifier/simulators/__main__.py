"""Both simulators in one process: ``python -m notifier.simulators --folder DIR``."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from notifier.simulators.apns import ApnsSimulator
from notifier.simulators.certificates import make_apns_key, make_certificates
from notifier.simulators.control import Control, Steered
from notifier.simulators.fcm import FcmSimulator, make_service_account
from notifier.simulators.wire import Scripts, WireLog, load_scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

TEAM_ID: Final = "SIMTEAM001"
KEY_ID: Final = "SIMULATED1"
TOPIC: Final = "com.example.app"
PROJECT_ID: Final = "simulated-project"
LAST_PORT: Final = 65535

DESCRIPTION: Final = """\
Run an APNs-like and an FCM-like server on 127.0.0.1 until SIGTERM or SIGINT. Throw-away certificates and keys
are written into the folder. Once both listen, one line of JSON on standard output says what to configure:

  {"apns": {"endpoint", "ca_file", "key_file", "key_id", "team_id", "topic"},
   "fcm": {"endpoint", "ca_file", "service_account"}, "wire_log"}
"""
EXAMPLE: Final = """\
example:
  python -m notifier.simulators --folder /tmp/simulators --latency-ms 20 --scripts replies.json

where replies.json holds, by device token, what to answer to its first, second... message (the last repeats):
  {"00ab...": [{"status": 410, "reason": "Unregistered"}],
   "fcm-token-0000001": [{"status": 503, "headers": {"Retry-After": "5"}}, {"status": 200}]}
"""


class UnusableError(Exception):
    """What was asked for cannot be had; the text is for the person who asked."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulators; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        asyncio.run(_serve(options))
    except UnusableError as error:
        sys.stderr.write(f"notifier.simulators: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m notifier.simulators",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, required=True, help="for certificates and keys; made if missing")
    parser.add_argument("--apns-port", type=_port, default=0, metavar="N", help="default: a free one")
    parser.add_argument("--fcm-port", type=_port, default=0, metavar="N", help="default: a free one")
    parser.add_argument(
        "--latency-ms",
        type=_latency,
        default=0.0,
        metavar="F",
        help="wait before each answer, in milliseconds",
    )
    parser.add_argument("--scripts", type=Path, metavar="FILE", help="JSON of answers by device token, see below")
    parser.add_argument(
        "--wire-log",
        type=Path,
        metavar="FILE",
        help="arrivals as JSON lines; default: wire.jsonl in the folder",
    )
    parser.add_argument(
        "--control",
        type=Path,
        metavar="FILE",
        help="a Unix socket to steer by while they run; notifier/simulators/control.py says how",
    )
    return parser


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= LAST_PORT:
        raise argparse.ArgumentTypeError(f"{port} is no port: give 0 to {LAST_PORT}")
    return port


def _latency(text: str) -> float:
    latency_ms = float(text)
    if not 0 <= latency_ms < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no latency: give milliseconds, 0 or more")
    return latency_ms


async def _serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    scripts = _scripts(options.scripts)
    folder = options.folder.resolve()
    wire_log = (options.wire_log or folder / "wire.jsonl").resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        certificates = make_certificates(folder)
        apns_key, apns_public = make_apns_key(folder, KEY_ID)
        log = WireLog(wire_log)
    except OSError as error:
        raise UnusableError(f"cannot write {error.filename}: {error.strerror}") from None
    shared: dict[str, Any] = {
        "certificates": certificates,
        "log": log,
        "scripts": scripts,
        "latency_ms": options.latency_ms,
    }
    apns = ApnsSimulator(topics={TOPIC}, team_keys={KEY_ID: (TEAM_ID, apns_public)}, port=options.apns_port, **shared)
    fcm = FcmSimulator(project_id=PROJECT_ID, port=options.fcm_port, **shared)
    steered: dict[str, Steered] = {"apns": apns, "fcm": fcm}
    control = None if options.control is None else Control(options.control, log, steered)
    try:
        await _start(apns, "--apns-port", options.apns_port)
        await _start(fcm, "--fcm-port", options.fcm_port)
        account = make_service_account(folder, f"{fcm.url}/token", PROJECT_ID)
        fcm.trust(account)
        if control is not None:
            await _start(control, "--control", options.control)
        ca_file = str(certificates.ca_file)
        _announce(
            {
                "apns": {
                    "endpoint": apns.url,
                    "ca_file": ca_file,
                    "key_file": str(apns_key),
                    "key_id": KEY_ID,
                    "team_id": TEAM_ID,
                    "topic": TOPIC,
                },
                "fcm": {"endpoint": fcm.url, "ca_file": ca_file, "service_account": str(account)},
                "wire_log": str(wire_log),
            }
        )
        await stop.wait()
    finally:
        if control is not None:
            await control.close()
        await apns.close()
        await fcm.close()
        log.close()


def _scripts(path: Path | None) -> Scripts:
    if path is None:
        return {}
    try:
        return load_scripts(path)
    except OSError as error:
        raise UnusableError(f"--scripts: cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise UnusableError(f"--scripts: {path} is not of the form that --help shows: {error}") from None


async def _start(server: ApnsSimulator | FcmSimulator | Control, option: str, where: int | Path) -> None:
    try:
        await server.start()
    except OSError as error:
        raise UnusableError(f"{option} {where}: cannot listen there: {error.strerror}") from None


def _announce(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
