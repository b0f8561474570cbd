"""The FastAPI application (the page and the JSON API of docs/howto/serve.md) and the server that runs it."""

import asyncio
import errno
import logging
import socket
import threading
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn import count_parameters
from linfnet.serve import schemas
from linfnet.serve.decode import CostlyPictureError
from linfnet.serve.decoder import check_scans
from linfnet.serve.limits import SECURITY_HEADERS, Bodies, BodyDrain, OriginGuard
from linfnet.serve.protocol import MAX_CONNECTIONS, GuardedServer
from linfnet.serve.schemas import Attack, Error, Model, Prediction, describe_error, parse_request, with_shape
from linfnet.serve.service import Service
from linfnet.serve.turns import Gate
from linfnet.version import __version__

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
JSON, PICTURES = "application/json", ("image/png", "image/jpeg", "image/webp")
MAX_PICTURE_BYTES = 4_000_000
# Largest total size of the pictures that wait for each of the two processes that decode.
MAX_WAITING_BYTES = 12_000_000
NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
# A request gets status 503 if the request before it is computed for longer than this.
BUSY_SECONDS = 4.0


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 selects any free port.

    Call this before loading the net, so that a port in use is reported early.
    """
    if not 0 <= port < 65536:
        raise ArgumentError(f"port is {port}; expected a number from 0 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        dual = family == socket.AF_INET6
        return socket.create_server(address, family=family, backlog=MAX_CONNECTIONS, dualstack_ipv6=dual)
    except (socket.gaierror, ValueError):  # the name is unknown or cannot be encoded, or there is no IPv6
        raise LinfnetError(f"host is {host!r}: there is no such address") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LinfnetError(
                f"port {port} of {host} is in use; choose another --port (0 for any free port)"
            ) from None
        raise LinfnetError(f"cannot listen: {error.strerror}") from None


def url_of(bound: socket.socket, host: str) -> str:
    """Return the URL of the page for a browser on this machine."""
    name = "localhost" if host in ("0.0.0.0", "::") else host
    address = f"[{name}]" if ":" in name else name
    return f"http://{address}:{bound.getsockname()[1]}/"


def run_server(service: Service, bound: socket.socket, names: frozenset[str]) -> None:
    """Serve until the process is interrupted; connections made since `bind` are also answered."""
    if count_parameters(service.net) < 4_000_000:
        torch.set_num_threads(1)  # for a small net, starting threads takes longer than the computation
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    service.decoder.start()
    service.costly_decoder.start()
    GuardedServer(create_app(service, names)).run(sockets=[bound])


def create_app(service: Service, names: frozenset[str] = frozenset({"localhost"})) -> FastAPI:
    """Create the application for one net; `names` are the host names that it accepts, besides IP addresses."""
    predictions, attacks = Gate("predict", 255, BUSY_SECONDS), Gate("attack", 3, BUSY_SECONDS)
    decoding, costly_decoding = (Gate("decode", MAX_WAITING_BYTES, BUSY_SECONDS, BUSY_SECONDS) for _ in range(2))
    bodies = Bodies()
    shape = service.net.picture_shape()
    image_request, attack_request = with_shape(schemas.ImageRequest, shape), with_shape(schemas.AttackRequest, shape)
    # A number needs at most 32 bytes of JSON.
    max_json_bytes = 1024 + 32 * shape[0] * shape[1] * shape[2]
    app = FastAPI(
        title="linfnet serve",
        version=__version__,
        openapi_url="/api/openapi.json",
        # FastAPI's own pages load scripts from other sites.
        docs_url=None,
        redoc_url=None,
        telemetry=NO_TELEMETRY,
        responses={"4XX": {"model": Error}, "5XX": {"model": Error}},
        middleware=[Middleware(BodyDrain), Middleware(OriginGuard, names=names)],
        exception_handlers=dict.fromkeys((HTTPException, RequestValidationError, Exception), _error_response),
    )
    # Read the files of the page once, so that requests open no files.
    for path in sorted(STATIC.iterdir()):
        url = "/" if path.name == "index.html" else f"/static/{path.name}"
        response = Response(path.read_bytes(), media_type=MEDIA_TYPES[path.suffix])
        app.routes.append(Route(url, response, methods=["GET"]))

    for sample, content in zip(service.samples, service.sample_files, strict=True):
        app.routes.append(Route(sample.url, Response(content, media_type="image/png"), methods=["GET"]))

    async def read_picture(request: Request, fit: schemas.Fit) -> torch.Tensor:
        file = await bodies.read(request, MAX_PICTURE_BYTES)
        check_scans(file)
        try:
            return await decoding.run(lambda: service.decoder.read(file, shape, fit), len(file), len(file))
        except CostlyPictureError as error:
            work = error.work
        return await costly_decoding.run(lambda: service.costly_decoder.read(file, shape, fit), work, len(file))

    @app.get("/api/model")
    async def model() -> Model:
        """Describe the net."""
        return service.describe()

    @app.post("/api/predict", openapi_extra=_document_body(image_request.model_json_schema(), PICTURES))
    async def predict(request: Request, fit: schemas.Fit = "none") -> Prediction:
        """Return the class, certified radius, runner-up and scores of an image."""
        content_type = _content_type(request, JSON, *PICTURES)
        if content_type == JSON:
            body = await bodies.read(request, max_json_bytes)
            return await predictions.run(
                lambda: service.predict(torch.tensor(parse_request(image_request, body).pixels))
            )
        image = await read_picture(request, fit)
        return await predictions.run(lambda: service.predict(image))

    @app.post("/api/attack", openapi_extra=_document_body(attack_request.model_json_schema()))
    async def attack(request: Request) -> Attack:
        """Return the closest misclassified image that PGD finds; with `eps`, the strongest attack within this ε."""
        _content_type(request, JSON)
        body = await bodies.read(request, max_json_bytes)

        def run() -> Attack:
            content = parse_request(attack_request, body)
            return service.attack(torch.tensor(content.pixels), content.steps, disconnected.is_set, content.eps)

        disconnected = threading.Event()
        watch = asyncio.create_task(_set_on_disconnect(request, disconnected))
        try:
            return await attacks.run(run)
        finally:
            disconnected.set()
            watch.cancel()

    return app


def _document_body(schema: dict[str, Any], pictures: tuple[str, ...] = ()) -> dict[str, Any]:
    """Describe a body for openapi.json; FastAPI does not parse it, because it would read it without limits."""
    files = {kind: {"schema": {"type": "string", "contentMediaType": kind}} for kind in pictures}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}, **files}}}


def _content_type(request: Request, *allowed: str) -> str:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in allowed:
        raise HTTPException(415, f"the content type is {content_type[:60]!r}; expected {' or '.join(allowed)}")
    return content_type


async def _set_on_disconnect(request: Request, event: threading.Event) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(0.2)
    event.set()


async def _error_response(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        texts = {404: "nothing is served at this path", 405: f"{request.method} is not allowed for this path"}
        status, text = error.status_code, texts.get(error.status_code, error.detail)
        headers = {"Retry-After": "1"} if status in (429, 503) else error.headers
        return JSONResponse({"error": text}, status, headers=headers)
    if isinstance(error, RequestValidationError):
        details = error.errors()[0]
        return JSONResponse({"error": describe_error({**details, "loc": details["loc"][1:]})}, 400)
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    # The middleware of this response is outside the middleware that adds the headers to other responses.
    return JSONResponse({"error": f"the server failed: {reason[:200]}"}, 500, headers=SECURITY_HEADERS)
