"""Bearer tokens: who may call a served engine."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio

from dex_lite._errors import TokenFileError, TokenNeededError

_LOGGER = logging.getLogger("dex_lite")
# A known token is looked up without the disk for this long, an unknown one never.
_CHECKED_FOR_S = 1.0
_MAX_FILE_BYTES = 64 << 10
_MIN_TOKEN_CHARACTERS = 16
_Handler = Any  # a grpc.RpcMethodHandler; grpc has no types


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an engine on this host; False if nobody knows it."""
    host = host.removeprefix("[").removesuffix("]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    except OSError:
        return False
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    return bool(found) and all(ipaddress.ip_address(address).is_loopback for address in addresses)


def check_exposure(host: str, token_file: object) -> None:
    """Raise TokenNeededError if others could reach the engine and no token is asked for."""
    if token_file is None and not is_loopback(host):
        raise TokenNeededError(host)


class TokenFile:
    """The valid tokens: the lines of a file, read again when it changes.

    Only digests are kept, so that comparing takes the same time whatever the token's length is.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic):
        """Reads the file.

        Raises:
            TokenFileError: It cannot be read, or holds no usable token.
        """
        self.path = os.fspath(path)
        self._clock = clock
        self._digests: list[bytes] = []
        self._seen: tuple[int, ...] = ()
        self._fault: str | None = None
        self._checked_at = clock()
        self._refresh()
        if self._fault is not None:
            raise TokenFileError(self.path, self._fault)

    def accepts(self, token: str) -> bool:
        """Whether the token is one of the file's lines.

        Raises:
            TokenFileError: The file cannot be read any more; nobody is let in until it can.
        """
        if self._clock() - self._checked_at >= _CHECKED_FOR_S:
            self._refresh()
        if self._fault is None and self._is_known(token):
            return True
        self._refresh()  # it may be the new one
        if self._fault is not None:
            raise TokenFileError(self.path, self._fault)
        return self._is_known(token)

    def _is_known(self, token: str) -> bool:
        asked = _digest(token)
        is_known = False
        for digest in self._digests:
            is_known |= hmac.compare_digest(asked, digest)
        return is_known

    def _refresh(self) -> None:
        self._checked_at = self._clock()
        try:
            status = os.stat(self.path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
            if seen == self._seen and self._fault is None:
                return
            with open(self.path, "rb") as file:
                content = file.read(_MAX_FILE_BYTES + 1)
            tokens = _tokens(content)
        except (OSError, ValueError) as error:
            self._seen = ()
            fault = (error.strerror if isinstance(error, OSError) else None) or str(error)
            if fault != self._fault and self._digests:  # at the start, who opens the file says it
                _LOGGER.error("token file %s: %s", self.path, fault)
            self._fault = fault
            return
        if self._seen or self._fault is not None:
            _LOGGER.info("token file %s was read again: %d tokens", self.path, len(tokens))
        self._seen, self._fault = seen, None
        self._digests = [_digest(token) for token in tokens]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _tokens(content: bytes) -> list[str]:
    if len(content) > _MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {_MAX_FILE_BYTES} bytes")
    try:
        tokens = [line.strip() for line in content.decode("ascii").splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise ValueError("a token must be ASCII text") from None
    for number, token in enumerate(tokens, 1):
        if not token.isprintable() or " " in token:
            raise ValueError(f"token {number} holds a space or a control character")
        if len(token) < _MIN_TOKEN_CHARACTERS:
            raise ValueError(
                f"token {number} has fewer than {_MIN_TOKEN_CHARACTERS} characters, "
                "which can be guessed"
            )
    if not tokens:
        raise ValueError("it holds no token")
    return tokens


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets a call or stream in that brings a valid token, and ends every other one."""

    def __init__(self, tokens: TokenFile) -> None:
        self._tokens = tokens

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[_Handler]], details: Any
    ) -> _Handler:
        """One call, before its request is read."""
        denied = self._denied(details.invocation_metadata)
        handler = await continuation(details)
        if denied is None or handler is None:
            return handler
        return _denying(handler, *denied)

    def _denied(self, metadata: Sequence[tuple[str, Any]]) -> tuple[grpc.StatusCode, str] | None:
        found = [value for key, value in metadata if key == "authorization"]
        if not found:
            return (
                grpc.StatusCode.UNAUTHENTICATED,
                "this engine needs a token; send it as 'authorization: Bearer TOKEN' "
                "(the SDK's Clients and Workers do with the option credential)",
            )
        scheme, _, token = str(found[0]).partition(" ")
        if len(found) != 1 or scheme.lower() != "bearer" or not token:
            return (
                grpc.StatusCode.UNAUTHENTICATED,
                "the authorization of this call is not 'Bearer TOKEN'",
            )
        try:
            if self._tokens.accepts(token):
                return None
        except TokenFileError:
            # The caller may be right, so it should try again; the path is not its business.
            return grpc.StatusCode.UNAVAILABLE, "the engine cannot read its token file"
        return grpc.StatusCode.UNAUTHENTICATED, "the token of this call is not a valid one"


def _denying(handler: _Handler, code: grpc.StatusCode, text: str) -> _Handler:
    async def deny(_: Any, context: Any) -> NoReturn:
        await context.abort(code, text)
        raise AssertionError("abort returned")

    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(deny)
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler(deny)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(deny)
    return grpc.unary_unary_rpc_method_handler(deny)
