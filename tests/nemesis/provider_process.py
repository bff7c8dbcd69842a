"""One provider in a process of its own that can be killed and started again: its keys and its port stay the same.

`python provider_process.py apns|fcm FOLDER PORT`. The folder holds what `make_identity` put there.
"""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from notifier.simulators.apns import ApnsSimulator
from notifier.simulators.certificates import Certificates, make_apns_key, make_certificates
from notifier.simulators.control import Control
from notifier.simulators.fcm import FcmSimulator, make_service_account
from notifier.simulators.wire import WireLog

TEAM_ID, KEY_ID, TOPIC, PROJECT = "SIMTEAM001", "SIMULATED1", "com.example.app", "simulated-project"


def make_identity(folder: Path, apns_port: int, fcm_port: int) -> dict[str, Any]:
    """Write the certificates and keys of both; returns the section `providers` of a configuration."""
    certificates = make_certificates(folder)
    key, public = make_apns_key(folder, KEY_ID)
    (folder / "apns_public.pem").write_text(public, encoding="ascii")
    account = make_service_account(folder, f"https://127.0.0.1:{fcm_port}/token", PROJECT)
    shared = {"ca_file": str(certificates.ca_file), "timeout": "1s"}
    apns = {"client": "h2", "team_id": TEAM_ID, "key_id": KEY_ID, "key_file": str(key), "topic": TOPIC}
    fcm = {"client": "pyfcm", "service_account": str(account)}
    return {
        "apns": {**apns, **shared, "endpoint": f"https://127.0.0.1:{apns_port}"},
        "fcm": {**fcm, **shared, "endpoint": f"https://127.0.0.1:{fcm_port}"},
    }


async def serve(platform: str, folder: Path, port: int) -> None:
    """Serve until SIGTERM; prints a line once it listens."""
    files = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key", folder / "wrong-name.pem")
    log = WireLog(folder / f"{platform}.jsonl")
    simulator: Any
    if platform == "apns":
        public = (folder / "apns_public.pem").read_text(encoding="ascii")
        keys = {KEY_ID: (TEAM_ID, public)}
        # The interval that Apple keeps between two provider tokens would hold up all workers after a restart.
        simulator = ApnsSimulator(
            certificates=files, log=log, topics={TOPIC}, team_keys=keys, port=port, token_update_s=0
        )
    else:
        simulator = FcmSimulator(certificates=files, log=log, port=port)
        simulator.trust(folder / "service-account.json")
    control = Control(folder / f"{platform}.socket", log, [simulator])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await simulator.start()
    await control.start()
    sys.stdout.write(json.dumps({"listening": simulator.url}) + "\n")
    sys.stdout.flush()
    await stop.wait()
    await control.close()
    await simulator.close()
    log.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
