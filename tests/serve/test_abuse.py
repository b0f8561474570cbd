"""Abuse of a real server on a real socket: errors are clear, memory is bounded, and no files are opened."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from linfnet.cli.main import main
from linfnet.serve import bind
from linfnet.serve.limits import Gate, read_body

JSON = {"Content-Type": "application/json"}
DIGIT = json.dumps({"pixels": [[0.0] * 12 + [1.0] * 3 + [0.0] * 13] * 28}).encode()


class Served:
    """A server in a separate process."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "linfnet", "serve", *arguments, "--port", "0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        assert found, line
        self.port = int(found[1])

    def request(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None):
        """Return the status and the body of one response."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            link.request(method, path, body, headers or {})
            answer = link.getresponse()
            return answer.status, answer.read()
        finally:
            link.close()

    def raw(self, text: bytes) -> bytes:
        """Return the response to raw bytes, read until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as link:
            link.sendall(text)
            link.shutdown(socket.SHUT_WR)
            parts = iter(lambda: link.recv(65536), b"")
            return b"".join(parts)

    def peak_memory(self) -> int:
        """Return the peak memory of the process, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        return int(peak) * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    served = Served("mnist-small")
    # The first response of each kind imports modules and allocates memory that later responses reuse.
    assert served.request("POST", "/api/predict", DIGIT, JSON)[0] == 200
    assert served.request("POST", "/api/attack", DIGIT[:-1] + b', "steps": 2}', JSON)[0] == 200
    yield served
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(timeout=20) == 0
    assert served.process.stdout is not None
    served.process.stdout.close()


def check_still_works(server: Served) -> None:
    status, body = server.request("POST", "/api/predict", DIGIT, JSON)
    assert status == 200
    assert json.loads(body)["radius"] is not None
    assert server.process.poll() is None


@pytest.mark.parametrize("kind", ["application/json", "image/png", "text/plain"])
@pytest.mark.parametrize("path", ["/api/predict", "/api/attack", "/", "/nothing"])
def test_fifty_megabytes(server: Served, kind: str, path: str):
    before = server.peak_memory()
    status, body = server.request("POST", path, bytes(50_000_000), {"Content-Type": kind})
    taken = ("application/json", "image/png") if path == "/api/predict" else ("application/json",)
    assert status == {"/": 405, "/nothing": 404}.get(path, 413 if kind in taken else 415)
    assert json.loads(body).keys() == {"error"}
    assert server.peak_memory() - before < 16_000_000
    check_still_works(server)


def test_fifty_megabytes_of_unknown_length(server: Served):
    before = server.peak_memory()
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    link.request("POST", "/api/predict", (bytes(100_000) for _ in range(500)), {**JSON}, encode_chunked=True)
    answer = link.getresponse()
    assert answer.status == 413
    assert json.loads(answer.read()) == {"error": "the body has more than 26,112 bytes"}
    link.close()
    assert server.peak_memory() - before < 16_000_000
    check_still_works(server)


def test_two_hundred_at_once(server: Served):
    before = server.peak_memory()
    with ThreadPoolExecutor(200) as pool:
        jobs = [pool.submit(server.request, "POST", "/api/predict", DIGIT, JSON) for _ in range(200)]
        answers = Counter(job.result()[0] for job in jobs)
    assert answers == {200: 200}
    assert server.peak_memory() - before < 64_000_000


def test_two_hundred_large_pictures_at_once(server: Served):
    """The bodies have 800 MB in total; only a few of them are in memory at a time."""
    before = server.peak_memory()
    with ThreadPoolExecutor(200) as pool:
        headers = {"Content-Type": "image/png"}
        jobs = [pool.submit(server.request, "POST", "/api/predict", bytes(4_000_000), headers) for _ in range(200)]
        answers = Counter(job.result()[0] for job in jobs)
    assert answers == {400: 200}
    assert server.peak_memory() - before < 128_000_000
    check_still_works(server)


def test_two_hundred_attacks_at_once(server: Served):
    before = server.peak_memory()
    with ThreadPoolExecutor(200) as pool:
        body = DIGIT[:-1] + b', "steps": 2}'
        jobs = [pool.submit(server.request, "POST", "/api/attack", body, JSON) for _ in range(200)]
        answers = Counter(job.result()[0] for job in jobs)
    assert answers.keys() == {200, 429}
    assert 1 <= answers[200] < 200
    assert server.peak_memory() - before < 64_000_000
    check_still_works(server)


TRAVERSALS = (
    b"/../../etc/passwd",
    b"/static/../../pyproject.toml",
    b"//etc/passwd",
    b"/static/%00",
    b"/%2e%2e/%2e%2e/etc",
)


@pytest.mark.parametrize("path", TRAVERSALS)
def test_path_traversal_over_a_socket(server: Served, path: bytes):
    answer = server.raw(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert answer.split(b"\r\n")[0].split(b" ")[1] == b"404"
    assert b"root:" not in answer


def test_no_file_is_opened_by_a_request(server: Served):
    """After any request, the process has the same files open as before."""
    folder = Path(f"/proc/{server.process.pid}/fd")

    def files() -> set[str]:
        links = {str(link.readlink()) for link in folder.iterdir() if link.is_symlink()}
        return {link for link in links if link.startswith("/")}

    before = files()
    for path in ("/", "/static/page.js", "/static/../service.py", "/api/model"):
        server.request("GET", path)
    assert files() == before


@pytest.mark.parametrize(
    "text", [b"hello\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_requests_that_are_not_http(server: Served, text: bytes):
    answer = server.raw(text)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403"))
    check_still_works(server)


def test_a_body_that_does_not_arrive_is_an_error(monkeypatch: pytest.MonkeyPatch):
    async def never() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr("linfnet.serve.limits.BODY_SECONDS", 0.05)
    request = Request({"type": "http", "method": "POST", "headers": [(b"content-length", b"9")]}, never)
    with pytest.raises(HTTPException, match=r"did not arrive within 0\.05 s") as raised:
        asyncio.run(read_body(request, 100))
    assert raised.value.status_code == 408


def test_requests_beyond_the_capacity_get_an_error():
    async def two() -> list[int]:
        gate, statuses = Gate("predict", active=1, waiting=1, patience=0.05), []
        async with gate.enter():
            tries = [asyncio.create_task(_status(gate)) for _ in range(2)]
            statuses = [await job for job in tries]
        return [*statuses, await _status(gate)]

    assert asyncio.run(two()) == [503, 429, 200]


async def _status(gate: Gate) -> int:
    try:
        async with gate.enter():
            return 200
    except HTTPException as error:
        return error.status_code


def test_a_port_in_use_is_reported(capsys: pytest.CaptureFixture[str]):
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    assert (
        capsys.readouterr().err
        == f"error: port {port} of 127.0.0.1 is in use; choose another --port (0 for any free port)\n"
    )


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "PIL"])
def test_a_missing_extra_is_reported(missing: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("linfnet.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["serve", "--port", "0"]) == 2
    assert "pip install 'linfnet[serve]'" in capsys.readouterr().err


def test_wrong_addresses_are_reported(capsys: pytest.CaptureFixture[str]):
    for arguments, words in ((["--port", "70000"], "port is 70000"), (["--host", "no such host"], "no such address")):
        assert main(["serve", *arguments]) == 2
        assert words in capsys.readouterr().err
    assert main(["serve", "/no/such/model", "--port", "0"]) == 2
