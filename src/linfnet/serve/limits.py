"""Limits on requests: their origin, and the size and duration of their bodies."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_SECONDS = 10.0
# Largest total size of the bodies that are being received.
MAX_RECEIVED_BYTES = 24_000_000
# `BodyDrain` stops reading after this many bytes or seconds.
DRAIN_SECONDS = 5.0
DRAIN_BYTES = 64_000_000
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class OriginGuard:
    """Middleware that rejects foreign Host and Origin headers and adds the security headers to every response.

    It accepts only IP addresses and the given names as hosts: a foreign DNS server can make any other
    name resolve to this machine (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self.app, self.names = app, frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        error = self._error(Headers(scope=scope)) if scope["type"] == "http" else None
        app: Any = JSONResponse({"error": error}, 403) if error else self.app
        await app(scope, receive, send_with_headers)

    def _error(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            name = urlsplit(f"//{host}").hostname or ""
            allowed = name in self.names or bool(ip_address(name))
        except ValueError:
            allowed = False
        if not allowed:
            return f"the host {host[:60]!r} is not this server"
        if origin is not None and origin.partition("://")[2] != host:
            return f"pages of {origin[:60]!r} may not use this server"
        return None


@dataclass(eq=False)
class _Body:
    started: float
    limit: asyncio.Timeout
    parts: list[bytes] = field(default_factory=list[bytes])
    size: int = 0
    refused: bool = False

    def occupied(self, now: float) -> tuple[float, int]:
        """Return the memory that it has occupied, in bytes times seconds, and its size."""
        return self.size * (now - self.started), self.size


class Bodies:
    """The bodies that are being received; their total size is at most `max_total`.

    A body that would exceed it takes the room of the body that has occupied the most memory, in bytes times seconds:
    slow senders do not keep others out.
    """

    def __init__(self, max_total: int = MAX_RECEIVED_BYTES) -> None:
        self.max_total = max_total
        self._bodies = list[_Body]()

    async def read(self, request: Request, max_bytes: int) -> bytes:
        """Read the whole body; raise 413 as soon as its announced or received size exceeds the limit."""
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise HTTPException(415, f"the content encoding is {encoding[:60]!r}; expected no compression")
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > max_bytes:
            raise HTTPException(413, f"the body has {length[:20]} bytes; expected at most {max_bytes:,}")
        body = _Body(asyncio.get_running_loop().time(), asyncio.timeout(BODY_SECONDS))
        refusal = HTTPException(503, "too many bytes are being received at once; retry later")
        self._bodies.append(body)
        try:
            async with body.limit:
                async for part in request.stream():
                    body.parts.append(part)
                    body.size += len(part)
                    if body.size > max_bytes:
                        raise HTTPException(413, f"the body has more than {max_bytes:,} bytes")
                    self._make_room()
                    if body.refused:
                        raise refusal
        except TimeoutError:
            if body.refused:
                raise refusal from None
            raise HTTPException(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
        except ClientDisconnect:
            raise HTTPException(400, "the connection closed before the end of the body") from None
        finally:
            self._bodies.remove(body)
        return b"".join(body.parts)

    def _make_room(self) -> None:
        """Refuse bodies until the others are not too large in total."""
        now = asyncio.get_running_loop().time()
        while sum(body.size for body in self._bodies) > self.max_total:
            worst = max(self._bodies, key=lambda body: body.occupied(now))
            worst.parts.clear()
            worst.size, worst.refused = 0, True
            worst.limit.reschedule(now)


class BodyDrain:
    """Middleware that discards the rest of the body after a response that was sent early, such as an error.

    Many clients send the whole body before they read the response: if the connection closed at once, they would report
    a broken connection instead of the error.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        complete = scope["type"] != "http" or scope["method"] in ("GET", "HEAD")

        async def receive_part() -> Message:
            nonlocal complete
            message = await receive()
            complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message

        async def send_and_drain(message: Message) -> None:
            if not complete and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
            elif not complete and not message.get("more_body", False):
                await send({**message, "more_body": True})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN_SECONDS):
                        size = 0
                        while not complete and size < DRAIN_BYTES:
                            size += len((await receive_part()).get("body", b""))
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        await self.app(scope, receive_part, send_and_drain)
