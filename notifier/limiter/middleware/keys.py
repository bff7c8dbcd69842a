"""Keys of web requests: the client's address, a user, or an API key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, TypeAlias
from uuid import UUID

from notifier.limiter.middleware.request import WebRequest

Key: TypeAlias = Callable[[WebRequest], str | None]
Address: TypeAlias = IPv4Address | IPv6Address
UNKNOWN: Final = "ip:unknown"
UNIX: Final = "unix"
NAT64: Final = IPv6Network("64:ff9b::/96")  # an IPv4 address behind a translator


def client_address(
    trusted_proxies: Iterable[str] = (), *, header: str = "x-forwarded-for", ipv6_prefix: int = 64
) -> Key:
    """Limit by the client's address. Without `trusted_proxies`, that is the other end of the connection.

    trusted_proxies: addresses and networks of your own proxies, such as "10.0.0.0/8", and "unix" for a Unix socket. The
    `header` is read from the right, and only the part that these proxies wrote is used, never a part that a client
    wrote.
    ipv6_prefix: addresses of one such network count as one client, because a client usually has a whole /64.
    """
    if isinstance(trusted_proxies, str):
        raise TypeError(f"trusted_proxies is a list of addresses, such as [{trusted_proxies!r}]")
    entries = list(trusted_proxies)
    networks = [_network(entry) for entry in entries if entry != UNIX]
    if not 1 <= ipv6_prefix <= IPv6Address(0).max_prefixlen:
        raise ValueError(f"ipv6_prefix is a number of bits from 1 to 128, not {ipv6_prefix}")

    def trusted(address: Address | None) -> bool:
        return UNIX in entries if address is None else any(address in network for network in networks)

    def key(request: WebRequest) -> str:
        found = _address(request.peer) if request.peer is not None else None
        if request.peer is not None and found is None:
            return UNKNOWN
        hops = request.headers.get(header.lower(), "").split(",")
        while hops and trusted(found):
            hop = _address(hops.pop())
            if hop is None:
                break
            found = hop
        return UNKNOWN if found is None else f"ip:{_client(found, ipv6_prefix)}"

    return key


def api_key(header: str = "x-api-key", *, otherwise: Key | None = None) -> Key:
    """Limit by the value of a header, hashed, so that no secret is in Redis. Without the header, `otherwise` is used.

    otherwise: another key; by default the client's address.

    An invented API key has its own count until your program refuses it, so use a limit by address as well.
    """
    fallback = otherwise or client_address()

    def key(request: WebRequest) -> str | None:
        secret = request.headers.get(header.lower())
        return f"key:{digest(secret)}" if secret else fallback(request)

    return key


def user(find: Callable[[Any], Any], *, otherwise: Key | None = None) -> Key:
    """Limit by the user who signed in. If nobody did, `otherwise` is used; by default the client's address.

    find: returns the user's id from the framework's own request, or None: `lambda request: request.user.pk` in Django.
    """
    fallback = otherwise or client_address()

    def key(request: WebRequest) -> str | None:
        name = find(request.raw)
        if name is None or name is False or name == "":
            return fallback(request)
        if name is True or not isinstance(name, str | int | UUID):
            raise TypeError(f"find gives the user's id, text or a number, not {name!r}")
        return f"user:{name}"

    return key


def digest(text: str) -> str:
    """The hash of a text, in 32 characters."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def _network(entry: str) -> IPv4Network | IPv6Network:
    try:
        network = ip_network(entry)
    except ValueError as error:
        raise ValueError(f"trusted_proxies: {error}; write addresses and networks, such as '10.0.0.0/8'") from None
    if network.prefixlen == 0:
        raise ValueError(f"trusted_proxies: {entry} trusts every client to name itself; name your own proxies")
    return network


def _address(text: str) -> Address | None:
    """The address in `203.0.113.7`, `203.0.113.7:4711`, `2001:db8::1` or `[2001:db8::1]:4711`."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        return IPv4Address(int(address) & 0xFFFFFFFF) if address in NAT64 else address.ipv4_mapped or address
    return address


def _client(address: Address, ipv6_prefix: int) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((address, ipv6_prefix), strict=False))
