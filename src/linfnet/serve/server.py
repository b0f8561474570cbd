"""The socket and the event loop: the socket is bound before the net is loaded, so that a port in use fails at once."""

import errno
import logging
import socket

import torch
import uvicorn

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn.classifier import count_parameters
from linfnet.serve.app import create_app
from linfnet.serve.service import Service

# More connections get 503; each waiting one uses at most 64 kB.
MAX_CONNECTIONS = 512
# For smaller nets, starting threads takes longer than the work that they share.
SMALL_NET = 4_000_000


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free port."""
    if not 0 <= port < 65536:
        raise ArgumentError(f"port is {port}; expected a number from 0 to 65535")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise LinfnetError(f"host is {host!r}: there is no such address") from None
    family, kind, _, _, address = addresses[0]
    bound = socket.socket(family, kind)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(MAX_CONNECTIONS)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise LinfnetError(f"port {port} of {host} is in use; choose another --port (0 for any free one)") from None
        raise LinfnetError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    return bound


def url_of(bound: socket.socket, host: str) -> str:
    """Return the page's URL for a browser on this machine."""
    if host in ("0.0.0.0", "::", ""):
        host = "localhost"
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{bound.getsockname()[1]}/"


def run_server(service: Service, bound: socket.socket, names: frozenset[str]) -> None:
    """Serve until the process is interrupted; connections that came since `bind` are answered, too."""
    if count_parameters(service.net) < SMALL_NET:
        torch.set_num_threads(1)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        create_app(service, names),
        http="h11",
        loop="asyncio",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=3,
    )
    uvicorn.Server(config).run(sockets=[bound])
