"""What stands before every request: whose page it comes from, and what browsers may do with the answer."""

from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def host_of(address: str) -> str:
    """The name in a Host header, without its port; "" if there is none.

    >>> host_of("localhost:8000"), host_of("[::1]:8000"), host_of("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    try:
        return urlsplit(f"//{address}").hostname or ""
    except ValueError:
        return ""


def is_ours(host: str, names: frozenset[str]) -> bool:
    """Whether a page under that name can be ours: a number cannot be re-bound by a foreign DNS server, names can.

    >>> is_ours("127.0.0.1", frozenset()), is_ours("evil.example", frozenset({"localhost"}))
    (True, False)
    """
    try:
        ip_address(host)
    except ValueError:
        return host in names
    return True


class Guard:
    """Refuses foreign Host and Origin headers; adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self.app, self.names = app, frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        app: Any = self.app if refusal is None else JSONResponse({"error": refusal}, 403)
        await app(scope, receive, guarded if scope["type"] == "http" else send)

    def _refusal(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not is_ours(host_of(host), self.names):
            return f"the host {host[:60]!r} is not this server"
        if origin is not None and origin.partition("://")[2] != host:
            return f"pages of {origin[:60]!r} may not ask this server"
        return None
