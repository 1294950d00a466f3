"""Addresses and interfaces of this machine on the route to another."""

import socket

import psutil


def address_towards(host: str) -> str:
    """This machine's address on the route to a host.

    Raises:
        OSError: unknown host, or no route to it.
    """
    family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # UDP: only looks up the route, sends nothing
        return probe.getsockname()[0]


def interface_towards(host: str) -> str | None:
    """This machine's network interface on the route to a host (or of the host itself); None if ambiguous."""
    try:
        return _interfaces().get(address_towards(host))
    except OSError:
        return None


def address_of_interface(name: str) -> str | None:
    """The first IPv4 address of a network interface of this machine."""
    return next((address for address, interface in _interfaces().items() if interface == name), None)


def _interfaces() -> dict[str, str]:
    """IPv4 address to the name of its interface."""
    found = psutil.net_if_addrs()
    # an alias such as eth0:1 is no interface for gloo
    return {
        entry.address: name.partition(":")[0]
        for name, entries in found.items()
        for entry in entries
        if entry.family is socket.AF_INET
    }
