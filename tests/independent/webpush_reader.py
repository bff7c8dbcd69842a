"""Python's http_ece reads what was encrypted for a browser: the keys and the bodies stand in the file named first.

Runs in an environment of its own. Prints the texts.
"""

import json
import sys
from base64 import urlsafe_b64decode
from pathlib import Path

import http_ece
from cryptography.hazmat.primitives.asymmetric import ec


def decode(text: str) -> bytes:
    """Base64url without padding."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
key = ec.derive_private_key(int.from_bytes(decode(asked["key"]), "big"), ec.SECP256R1())
auth = decode(asked["auth"])
read = [
    http_ece.decrypt(decode(body), private_key=key, auth_secret=auth, version="aes128gcm").decode()
    for body in asked["bodies"]
]
sys.stdout.write(json.dumps(read))
