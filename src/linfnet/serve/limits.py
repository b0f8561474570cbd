"""Limits on requests: their origin, and the size and duration of their bodies."""

import asyncio
import contextlib
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from linfnet.serve.turns import TakeTurn

BODY_SECONDS = 10.0
# Bodies of this size are read at once; a larger body waits for its turn.
SMALL_BYTES = 16_384
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


async def read_body(request: Request, max_bytes: int, take_turn: TakeTurn | None = None) -> bytearray:
    """Read the whole body; raise 413 as soon as its announced or received size exceeds the limit.

    `take_turn` of `BodyTurns.body` is called when more than `SMALL_BYTES` have arrived.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise HTTPException(415, f"the content encoding is {encoding[:60]!r}; expected no compression")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > max_bytes:
        raise HTTPException(413, f"the body has {length[:20]} bytes; expected at most {max_bytes:,}")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS) as limit:
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    raise HTTPException(413, f"the body has more than {max_bytes:,} bytes")
                if take_turn and len(body) > SMALL_BYTES:
                    await take_turn(limit)
                    take_turn = None
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the connection closed before the end of the body") from None
    return body


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
