"""Which IP addresses belong to the public internet."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

Resolver = Callable[[str, int], list[str]]
"""A host and a port to the texts of its addresses; raises `OSError` where there are none."""

_NOT_PUBLIC = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # shared address space, RFC 6598
        "168.63.129.16/32",  # a public address by number, but the inside of a cloud's hosts
        "192.0.0.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "198.18.0.0/15",
        "240.0.0.0/4",
        "::/96",  # IPv4-compatible, with :: and ::1
        "::ffff:0:0/96",  # IPv4-mapped
        "::ffff:0:0:0/96",  # IPv4-translated
        "64:ff9b::/96",  # NAT64: an IPv4 address inside, and so any of them
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",  # Teredo, ORCHID and other special uses
        "2001:db8::/32",
        "2002::/16",  # 6to4: an IPv4 address inside
        "3fff::/20",
        "5f00::/16",
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")


def is_public_address(text: str) -> bool:
    """Whether `text` is a unicast address of the public internet; False for what is no address, or has a zone."""
    try:
        address: IPv4Address | IPv6Address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and (address.scope_id is not None or address not in _GLOBAL_UNICAST):
        return False
    if any(address.version == network.version and address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
        or address.is_unspecified
    )


def resolve(host: str, port: int) -> list[str]:
    """The system's `Resolver`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
