"""The API through FastAPI's test client: correct responses, and a one-line error for every wrong request."""

import io
import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from starlette.exceptions import HTTPException

from linfnet import LinfNet, compress
from linfnet.certificates import certified_by_interval
from linfnet.certificates.real import real_margin_radius
from linfnet.data import ImageSet
from linfnet.data.catalog import set_info
from linfnet.files import read_table
from linfnet.serve import Service, create_app, decoder, schemas
from linfnet.serve.decode import PictureError, read_picture
from linfnet.serve.decoder import Decoder, to_tensor
from linfnet.serve.limits import SECURITY_HEADERS
from linfnet.systems.ibp import IbpNet
from linfnet.systems.smoothing import SmoothedNet

BASE = "http://127.0.0.1:8000"


@pytest.fixture(autouse=True)
def _decode_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode pictures without a second process, which test_decode.py and test_abuse.py use."""

    def read(self: Decoder, body: bytes, shape: tuple[int, int, int], fit: str) -> torch.Tensor:
        try:
            return to_tensor(read_picture(body, shape, fit, self.max_work))
        except PictureError as error:
            raise HTTPException(error.status, str(error)) from None

    monkeypatch.setattr(Decoder, "read", read)


@pytest.fixture(scope="module")
def service() -> Service:
    return Service(Path("mnist-small"))


@pytest.fixture(scope="module")
def client(service: Service) -> TestClient:
    return TestClient(create_app(service), base_url=BASE, raise_server_exceptions=False)


def drawn_one() -> np.ndarray:
    """Return an image of a 1 as bytes [28, 28]."""
    picture = np.zeros((28, 28), dtype=np.uint8)
    picture[4:24, 13:15] = 255
    picture[4:24, 12] = picture[4:24, 15] = 120
    return picture


def png(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def post_png(client: TestClient, body: bytes, fit: str = "none") -> Any:
    return client.post(f"/api/predict?fit={fit}", content=body, headers={"content-type": "image/png"})


def check(value: Any, schema: dict[str, Any], schemas: dict[str, Any], path: str = "$") -> None:
    """Check a value against a JSON schema, for the keywords that openapi.json uses."""
    if "anyOf" in schema:
        schema = next(option for option in schema["anyOf"] if (option.get("type") == "null") == (value is None))
    if "$ref" in schema:
        schema = schemas[schema["$ref"].removeprefix("#/components/schemas/")]
    types = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
    types |= {"null": type(None)}
    assert isinstance(value, types[schema["type"]]), (path, value)
    if "enum" in schema:
        assert value in schema["enum"], path
    if isinstance(value, dict):
        assert value.keys() == schema["properties"].keys() == set(schema["required"]), path
        for key, part in value.items():
            check(part, schema["properties"][key], schemas, f"{path}.{key}")
    if isinstance(value, list):
        for part in value:
            check(part, schema["items"], schemas, f"{path}[]")


def check_response(client: TestClient, value: Any, name: str) -> None:
    schemas = client.get("/api/openapi.json").json()["components"]["schemas"]
    check(value, schemas[name], schemas)


def test_responses_are_as_documented(client: TestClient):
    check_response(client, client.get("/api/model").json(), "Model")
    prediction = post_png(client, png(drawn_one())).json()
    check_response(client, prediction, "Prediction")
    attack = client.post("/api/attack", json={"pixels": prediction["pixels"], "steps": 2}).json()
    check_response(client, attack, "Attack")
    check_response(client, client.post("/api/attack", json=[]).json(), "Error")


def test_requests_are_documented_with_the_shape_of_the_net(client: TestClient):
    paths = client.get("/api/openapi.json").json()["paths"]
    assert set(paths) == {"/api/model", "/api/predict", "/api/attack"}
    content = paths["/api/predict"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", "image/png", "image/jpeg", "image/webp"}
    pixels = content["application/json"]["schema"]["properties"]["pixels"]
    for size in (1, 28, 28):
        assert (pixels["minItems"], pixels["maxItems"]) == (size, size)
        pixels = pixels["items"]
    assert (pixels["minimum"], pixels["maximum"]) == (0, 1)
    (fit,) = paths["/api/predict"]["post"]["parameters"]
    assert fit["schema"]["enum"] == ["none", "crop", "resize", "digit"]
    for operation in (*paths["/api/model"].values(), *paths["/api/predict"].values(), *paths["/api/attack"].values()):
        assert set(operation["responses"]) == {"200", "4XX", "5XX"}


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_no_page_of_the_framework_is_served(client: TestClient, path: str):
    """FastAPI's documentation pages would load scripts from other sites."""
    assert client.get(path).status_code == 404


def test_a_prediction_agrees_with_the_library(client: TestClient, service: Service):
    answer = post_png(client, png(drawn_one())).json()
    image = torch.from_numpy(drawn_one())[None, None].float() / 255
    net = LinfNet.load("mnist-small")
    assert answer["class"] == {"index": 1, "name": "1"} == {"index": int(net(image).argmax()), "name": "1"}
    assert torch.tensor(answer["pixels"]).equal(image[0])
    assert [score["logit"] for score in answer["scores"]] == net(image)[0].double().tolist()
    assert answer["radius"] == max(answer["margin_radius"], answer["interval_radius"]) > 0.1
    labels = torch.tensor([1])
    assert certified_by_interval(net, image, labels, torch.tensor([answer["interval_radius"]], dtype=torch.float64))
    assert answer["margin_radius"] == pytest.approx(
        real_margin_radius(net(image), labels, net.lipschitz).item(), rel=1e-3
    )
    assert answer["runner_up"]["index"] == int(net(image)[0].argsort(descending=True)[1])


def test_json_and_picture_agree(client: TestClient):
    shown = post_png(client, png(drawn_one())).json()
    assert client.post("/api/predict", json={"pixels": shown["pixels"]}).json() == shown
    assert client.post("/api/predict", json={"pixels": shown["pixels"][0]}).json() == shown


def test_a_costly_picture_is_decoded_by_another_process_than_a_cheap_one(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
):
    read, used = Decoder.read, list[Decoder]()

    def record(self: Decoder, body: bytes, shape: tuple[int, int, int], fit: schemas.Fit) -> torch.Tensor:
        image = read(self, body, shape, fit)
        used.append(self)
        return image

    monkeypatch.setattr(Decoder, "read", record)
    large = np.tile(drawn_one(), (60, 60))
    for drawing in (drawn_one(), large):
        assert post_png(client, png(drawing), "resize").status_code == 200
    assert large.size > decoder.SMALL_WORK
    assert used == [service.decoder, service.costly_decoder]


def test_an_attack_breaks_outside_the_radius(client: TestClient):
    shown = post_png(client, png(drawn_one())).json()
    answer = client.post("/api/attack", json={"pixels": shown["pixels"], "steps": 10}).json()
    broken = torch.tensor(answer["broken"]["pixels"])
    moved = (broken.double() - torch.tensor(shown["pixels"]).double()).abs().max().item()
    assert answer["complete"]
    assert moved == answer["broken"]["distance"] >= answer["radius"] == shown["radius"]
    logits = LinfNet.load("mnist-small")(broken[None])[0]
    assert logits[1] <= logits.max()
    assert int(logits.argmax()) == answer["broken"]["class"]["index"] != 1
    assert not any(trial["broken"] for trial in answer["trials"] if trial["eps"] < answer["radius"])
    assert all(trial["broken"] == (trial["margin"] <= 0) for trial in answer["trials"])
    assert min(trial["eps"] for trial in answer["trials"] if trial["broken"]) >= moved


def test_an_attack_within_one_epsilon(client: TestClient):
    shown = post_png(client, png(drawn_one())).json()
    for eps, breaks in ((0.9 * shown["radius"], False), (0.9, True)):
        answer = client.post("/api/attack", json={"pixels": shown["pixels"], "steps": 5, "eps": eps}).json()
        check_response(client, answer, "Attack")
        found, (trial,) = answer["strongest"], answer["trials"]
        moved = (torch.tensor(found["pixels"]).double() - torch.tensor(shown["pixels"]).double()).abs().max().item()
        assert 0 < moved == found["distance"] <= eps == trial["eps"]
        assert (answer["broken"] == found) == trial["broken"] == (found["class"]["index"] != 1) == breaks
        logits = LinfNet.load("mnist-small")(torch.tensor(found["pixels"])[None])[0]
        assert trial["margin"] == logits[1].item() - logits[torch.arange(10) != 1].max().item()


@pytest.mark.parametrize("eps", [0, -0.1, 1.1, "8/255", True])
def test_epsilon_is_checked(client: TestClient, eps: Any):
    answer = client.post("/api/attack", json={"pixels": ZEROS, "eps": eps})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"eps is {eps!r}; input should be")


def colour_net(folder: Path) -> Path:
    torch.manual_seed(0)
    net = LinfNet((3, 32, 32), 10, (16,), mean=0.5, std=0.25)
    net.save(folder, class_names=set_info("cifar10").classes)
    return folder


def test_samples_are_test_images_of_the_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    images = torch.randint(0, 256, (20, 3, 32, 32), dtype=torch.uint8)
    stored = ImageSet(images, torch.arange(20) % 10, set_info("cifar10"), "test")
    monkeypatch.setattr("linfnet.serve.samples.present", lambda name: name == "cifar10")
    monkeypatch.setattr("linfnet.serve.samples.load", lambda name, split: stored)
    client = TestClient(create_app(Service(colour_net(tmp_path))), base_url=BASE)
    samples = client.get("/api/model").json()["samples"]
    assert [sample["label"]["name"] for sample in samples] == list(set_info("cifar10").classes)
    for k, sample in enumerate(samples):
        file = client.get(sample["url"])
        assert file.headers["content-type"] == "image/png"
        pixels = post_png(client, file.content).json()["pixels"]
        assert torch.tensor(pixels).mul(255).round().byte().equal(images[k])


@pytest.mark.parametrize("damaged", [False, True])
def test_there_are_no_samples_without_the_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool):
    monkeypatch.setenv("LINFNET_DATA", str(tmp_path / "data"))
    if damaged:
        monkeypatch.setattr("linfnet.serve.samples.present", lambda name: True)
    assert Service(colour_net(tmp_path)).samples == []


def test_compressed_nets_are_served(tmp_path: Path):
    image = torch.rand(3, 32, 32)
    net = LinfNet.load(colour_net(tmp_path / "dense"))
    compress(net, (torch.rand(50, 3, 32, 32), torch.arange(50) % 10)).net.save(tmp_path / "sparse")
    client = TestClient(create_app(Service(tmp_path / "sparse")), base_url=BASE)
    assert client.get("/api/model").json()["system"] == "sparse"
    shown = client.post("/api/predict", json={"pixels": image.tolist()}).json()
    check_response(client, shown, "Prediction")
    for options in ({}, {"eps": 0.02}):
        answer = client.post("/api/attack", json={"pixels": shown["pixels"], "steps": 2, **options}).json()
        check_response(client, answer, "Attack")


@pytest.mark.parametrize("system", ["ibp", "smoothing"])
def test_nets_of_other_systems_are_served(system: str, tmp_path: Path):
    torch.manual_seed(0)
    if system == "ibp":
        IbpNet((1, 8, 8), 3, "small", False).save(tmp_path)
    else:
        SmoothedNet((1, 8, 8), 3, "small", 0.25, 100, 0.01, 4).save(tmp_path)
    client = TestClient(create_app(Service(tmp_path)), base_url=BASE)
    model = client.get("/api/model").json()
    arithmetic = "float32" if system == "ibp" else "real"
    assert (model["system"], model["lipschitz"], model["arithmetic"]) == (system, None, arithmetic)
    assert (model["confidence"] < 1) == (system == "smoothing")
    pixels = torch.rand(8, 8).tolist()
    check_response(client, client.post("/api/predict", json={"pixels": pixels}).json(), "Prediction")
    check_response(client, client.post("/api/attack", json={"pixels": pixels, "steps": 2}).json(), "Attack")


def test_certificates_and_attacks_share_weights_but_not_p(service: Service):
    assert service.net.layers[0].weight is service.attacked.layers[0].weight
    service.attacked.p = 4.0
    try:
        assert math.isinf(service.net.p)
    finally:
        service.attacked.p = math.inf


def test_an_attack_stops_when_the_client_disconnects(service: Service):
    image = torch.from_numpy(drawn_one())[None].float() / 255
    answer = service.attack(image, 200, lambda: True)
    assert answer.complete is False
    assert answer.broken is None


JSON = {"content-type": "application/json"}
ZEROS = [[0.0] * 28] * 28

MISTAKES: dict[str, tuple[bytes, dict[str, str], int, str]] = {
    "broken": (b'{"pixels": [', JSON, 400, "not JSON"),
    "no utf-8": (b"\xff\xfe{", JSON, 400, "not JSON"),
    "deep": (b"[" * 20_000, JSON, 400, "not JSON"),
    "nan": (json.dumps({"pixels": ZEROS}).replace("0.0", "NaN", 1).encode(), JSON, 400, "pixels[0][0][0] is nan"),
    "infinity": (b'{"pixels": [[-Infinity]]}', JSON, 400, "pixels[0][0][0] is -inf"),
    "long number": (b'{"pixels": ' + b"9" * 20_000 + b"}", JSON, 400, "not JSON"),
    "a list": (b"[]", JSON, 400, "the body is []; input should be an object"),
    "no pixels": (b"{}", JSON, 400, "pixels is missing"),
    "another key": (json.dumps({"pixels": ZEROS, "path": "/etc"}).encode(), JSON, 400, "path is '/etc'; extra"),
    "a key of two lines": (json.dumps({"pixels": ZEROS, "a\nb": 1}).encode(), JSON, 400, r"a\nb is 1; extra"),
    "a string": (b'{"pixels": "zeros"}', JSON, 400, "pixels is 'zeros'; input should be a valid array"),
    "27 rows": (json.dumps({"pixels": ZEROS[1:]}).encode(), JSON, 400, "at least 28 items after validation, not 27"),
    "ragged": (json.dumps({"pixels": [*ZEROS[1:], [0.0] * 27]}).encode(), JSON, 400, "pixels[0][27] is [0.0, 0.0"),
    "too bright": (json.dumps({"pixels": [[1.5] * 28] * 28}).encode(), JSON, 400, "pixels[0][0][0] is 1.5; input"),
    "overflow": (json.dumps({"pixels": ZEROS}).replace("0.0", "1e999", 1).encode(), JSON, 400, "pixels[0][0][0]"),
    "true": (json.dumps({"pixels": [[True] * 28] * 28}).encode(), JSON, 400, "pixels[0][0][0] is True; input"),
    "too long": (b" " * 30_000, JSON, 413, "expected at most"),
    "text": (b"{}", {"content-type": "text/plain"}, 415, "'text/plain'"),
    "no type": (b"{}", {}, 415, "expected application/json"),
    "no picture": (b"hello", {"content-type": "image/png"}, 400, "cannot be read"),
    "a cut picture": (png(drawn_one())[:60], {"content-type": "image/png"}, 400, "cannot be read"),
    "wrong size": (png(drawn_one()[1:]), {"content-type": "image/png"}, 400, "27 x 28 (height x width), mode L"),
    "colour": (png(np.zeros((28, 28, 3), np.uint8)), {"content-type": "image/png"}, 400, "mode RGB"),
    "large picture": (b" " * 4_000_001, {"content-type": "image/png"}, 413, "expected at most 4,000,000"),
    "foreign host": (b"{}", {**JSON, "host": "evil.example:8000"}, 403, "is not this server"),
    "foreign page": (b"{}", {**JSON, "origin": "http://evil.example"}, 403, "may not use"),
    "sandboxed page": (b"{}", {**JSON, "origin": "null"}, 403, "may not use"),
    "broken origin": (b"{}", {**JSON, "origin": "http://["}, 403, "may not use"),
    "packed": (b"{}", {**JSON, "content-encoding": "gzip"}, 415, "'gzip'; expected no compression"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line(client: TestClient, case: str):
    body, headers, status, words = MISTAKES[case]
    for path in ("/api/predict", "/api/attack"):
        if path == "/api/attack" and "image/png" in headers.values():
            status, words = 415, "expected application/json"
        answer = client.post(path, content=body, headers=headers)
        assert answer.status_code == status, answer.text
        assert answer.json().keys() == {"error"}
        assert words in answer.json()["error"]
        assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize("steps", [0, 201, 1.5, True, "40", "\ud800", None], ids=ascii)
def test_steps_are_checked(client: TestClient, steps: Any):
    body = json.dumps({"pixels": ZEROS, "steps": steps})
    answer = client.post("/api/attack", content=body, headers=JSON)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("the body is not JSON" if steps == "\ud800" else "steps is ")


@pytest.mark.parametrize("side", [4_001, 60_000])
def test_decompression_bombs_are_not_opened(client: TestClient, side: int):
    """The header declares a huge size, which Pillow reads before it decodes any row."""
    bomb = bytearray(png(drawn_one()))
    bomb[16:24] = struct.pack(">II", side, side)
    bomb[29:33] = struct.pack(">I", zlib.crc32(bomb[12:29]))
    answer = post_png(client, bytes(bomb))
    assert answer.status_code == 413
    assert "expected at most 16,000,000 pixels" in answer.json()["error"]


def bitmap() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(drawn_one()).save(stream, "BMP")
    return stream.getvalue()


@pytest.mark.parametrize(
    "body", [bitmap(), b"GIF89a" + bytes(20), b"%!PS-Adobe-3.0 EPSF-3.0\n", b"<svg/>"], ids=range(4)
)
def test_other_formats_are_not_tried(client: TestClient, body: bytes):
    answer = post_png(client, body)
    assert answer.status_code == 400
    assert answer.json() == {"error": "the picture cannot be read: it is not a PNG, JPEG or WebP file"}


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/etc/passwd", "/static/", "/..%2f", "/api"],
)
def test_path_traversal_is_not_found(client: TestClient, path: str):
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json() == {"error": "nothing is served at this path"}


def test_other_methods(client: TestClient):
    answer = client.get("/api/predict")
    assert answer.status_code == 405
    assert answer.json() == {"error": "GET is not allowed for this path"}
    assert client.delete("/api/model").status_code == 405


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/static/page.css", "/api/model", "/nothing"])
def test_every_response_has_the_security_headers(client: TestClient, path: str):
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_only_ip_addresses_and_localhost_are_answered(client: TestClient):
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000", "192.168.0.7:80"):
        assert client.get("/api/model", headers={"host": host}).status_code == 200, host
    for host in ("", "localhost.evil.example", "127.0.0.1.evil.example", "[", "user@evil"):
        assert client.get("/api/model", headers={"host": host}).status_code == 403, host


def test_host_names_ignore_case(service: Service):
    client = TestClient(create_app(service, frozenset({"MyMachine"})))
    assert client.get("/api/model", headers={"host": "mymachine:8000"}).status_code == 200


def test_the_check_of_responses_can_fail():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    for value in ({"a": 1}, {}):
        with pytest.raises(AssertionError):
            check(value, schema, {})


def test_a_wrong_fit_is_refused(client: TestClient):
    answer = post_png(client, png(drawn_one()), "stretch")
    assert answer.status_code == 400
    assert answer.json() == {"error": "fit is 'stretch'; input should be 'none', 'crop', 'resize' or 'digit'"}


def test_a_failure_is_one_line(service: Service, monkeypatch: pytest.MonkeyPatch):
    def fail(image: torch.Tensor) -> None:
        raise RuntimeError("out of memory\nat address 0")

    monkeypatch.setattr(service, "predict", fail)
    client = TestClient(create_app(service), base_url=BASE, raise_server_exceptions=False)
    answer = post_png(client, png(drawn_one()))
    assert (answer.status_code, answer.json()) == (500, {"error": "the server failed: out of memory"})
    assert answer.headers.items() >= {name.lower(): value for name, value in SECURITY_HEADERS.items()}.items()


def test_half_characters_in_class_names_are_escaped(tmp_path: Path):
    LinfNet((1, 2, 2), 2, (4,)).save(tmp_path, class_names=("cat", "dog"))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**read_table(config), "class_names": ["\ud800 cat", "dog"]}))
    client = TestClient(create_app(Service(tmp_path)), base_url=BASE)
    assert client.get("/api/model").json()["class_names"] == ["\\ud800 cat", "dog"]
    answer = client.post("/api/predict", json={"pixels": [[0.5, 0.5], [0.5, 0.5]]})
    assert answer.status_code == 200
    assert {score["name"] for score in answer.json()["scores"]} == {"\\ud800 cat", "dog"}
