"""A page that subscribes to Web Push, and what takes the subscription: ``python examples/webpush/serve.py KEY.pem``.

Then open http://localhost:8000 (browsers allow service workers over plain http on localhost alone). Beside it run a
worker whose configuration has `providers.webpush` with the same key: `python -m workers`.
"""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from notifier import Device, InvalidNotificationError, Notification, Notifier
from notifier.providers.webpush.keys import load_key, public_key

HERE = Path(__file__).parent
PUBLIC_KEY = public_key(load_key(Path(sys.argv[1]).read_text(encoding="utf-8")))
FILES = {"/": ("index.html", "text/html"), "/sw.js": ("sw.js", "text/javascript")}


class Page(BaseHTTPRequestHandler):
    """Two files, the public key, and the address for subscriptions."""

    def do_GET(self) -> None:
        """Serve the page, its service worker or the key."""
        if self.path == "/public-key":
            self._answer(200, "text/plain", PUBLIC_KEY.encode())
        elif self.path in FILES:
            name, kind = FILES[self.path]
            self._answer(200, kind, (HERE / name).read_bytes())
        else:
            self._answer(404, "text/plain", b"not here\n")

    def do_POST(self) -> None:
        """Take a subscription and greet its browser. A real site keeps it with the user, for later."""
        token = self.rfile.read(int(self.headers["Content-Length"])).decode()
        greeting = Notification("me", [Device("webpush", token)], "Hello", "It works", webpush={"url": "/"})
        try:
            job_id = notifier.send(greeting)
        except InvalidNotificationError as error:
            self._answer(400, "text/plain", f"{error}\n".encode())
        else:
            self._answer(201, "text/plain", f"a greeting is on its way: {job_id}\n".encode())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.end_headers()
        self.wfile.write(body)


with Notifier.from_config() as notifier:
    HTTPServer(("localhost", 8000), Page).serve_forever()
