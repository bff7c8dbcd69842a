"""New keys of web push senders."""

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


def make_key() -> str:
    """A new private key in PEM, as openssl makes it."""
    no_password = serialization.NoEncryption()
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password).decode()
