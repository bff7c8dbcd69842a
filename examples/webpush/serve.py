"""A page that subscribes to Web Push, and what takes it: ``python examples/webpush/serve.py KEY.pem [PORT]``.

Then open http://localhost:8000 (browsers allow service workers over plain http on localhost alone). Beside it run a
worker whose configuration has `providers.webpush` with the same key: `notifier worker`.
"""

import contextlib
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from notifier import Device, InvalidNotificationError, Notification, Notifier, NotifierError
from notifier.providers.webpush.keys import load_key, public_key

HERE = Path(__file__).parent
PORT = (sys.argv[2:] or ["8000"])[0]
if not sys.argv[1:] or not PORT.isdecimal():
    sys.exit(__doc__)
try:
    PUBLIC_KEY = public_key(load_key(Path(sys.argv[1]).read_text(encoding="utf-8")))
except (OSError, ValueError, NotifierError) as mistake:
    sys.exit(f"{sys.argv[1]}: {getattr(mistake, 'strerror', None) or mistake}")
MAX_BYTES = 5_000  # of a subscription; they have about 500
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
        try:
            length = int(self.headers["Content-Length"])
            token = self.rfile.read(max(0, min(length, MAX_BYTES))).decode()  # less than 0 would be all that ever comes
        except (TypeError, ValueError):
            self._answer(400, "text/plain", b"give a subscription in UTF-8, and its Content-Length\n")
            return
        greeting = Notification("me", [Device("webpush", token)], "Hello", "It works", webpush={"url": "/"})
        try:
            job_id = notifier.send(greeting)
        except InvalidNotificationError as error:
            self._answer(400, "text/plain", f"{error}\n".encode())
        except NotifierError as error:
            self._answer(503, "text/plain", f"{error}\n".encode())
        else:
            self._answer(201, "text/plain", f"a greeting is on its way: {job_id}\n".encode())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.end_headers()
        self.wfile.write(body)


try:
    with Notifier.from_config() as notifier, ThreadingHTTPServer(("localhost", int(PORT)), Page) as server:
        print(f"open http://localhost:{PORT}")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
except OSError as mistake:
    sys.exit(f"cannot listen on localhost:{PORT}: {mistake.strerror}")
except NotifierError as mistake:
    sys.exit(str(mistake))
