"""Whether an address can be served, found out before gRPC does: it only says yes or no, and logs
the rest.
"""

from __future__ import annotations

import errno
import socket

from dex_lite._errors import AddressError, PortInUseError


def check_address(host: str, port: int) -> None:
    """Raise PortInUseError or AddressError if nothing could be served there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # A port that was closed a moment ago is free; one that somebody listens on is not.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(host, port) from None
        raise AddressError(host, port, error.strerror or str(error)) from error
