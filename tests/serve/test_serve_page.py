"""The page in a browser: draw with the mouse or the keyboard, choose a picture, read class, radius and distance."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
import uvicorn
from browser import Open, Visit
from PIL import Image

from linfnet import LinfNet
from linfnet.data import load
from linfnet.serve import Service, bind, create_app, url_of

SEVEN = ((0.28, 0.25), (0.7, 0.25), (0.45, 0.82))


def serve(model: Path) -> Iterator[str]:
    bound = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(Service(model)), ws="none", log_config=None, lifespan="off"))
    thread = Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    yield url_of(bound, "127.0.0.1")
    server.should_exit = True
    thread.join(20)
    bound.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    yield from serve(Path("mnist-small"))


@pytest.fixture(scope="module")
def colour_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("colour")
    torch.manual_seed(0)
    LinfNet((3, 32, 32), 3, (16,), mean=0.5, std=0.25).save(folder, class_names=("airplane", "automobile", "<b>bird"))
    yield from serve(folder)


@pytest.fixture(scope="module")
def small_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("small")
    LinfNet((1, 8, 8), 10, (16,)).save(folder, class_names=list("0123456789"))
    yield from serve(folder)


def draw(page: Any, strokes: tuple[tuple[float, float], ...] = SEVEN) -> None:
    box = page.locator("#pad").bounding_box()
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in strokes]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=5)
    page.mouse.up()


def ready(visit: Visit) -> Any:
    visit.page.wait_for_selector("html[data-ready]", state="attached")
    return visit.page


def read(page: Any, name: str, pattern: str) -> str:
    """Return the text of an element once it matches the pattern."""
    page.locator(f"#{name}", has_text=re.compile(pattern)).wait_for(timeout=30_000)
    return page.locator(f"#{name}").text_content()


def test_radii_are_rounded_down(open_page: Open, url: str):
    page = ready(open_page(url))
    cut = page.evaluate(
        "import('/static/certificate_chart.js').then(({ floor }) => [0.29, 0.5, 0.12349, 0, 1].map((x) => floor(x, 4)))"
    )
    assert cut == ["0.2899", "0.5000", "0.1234", "0.0000", "1.0000"]


def test_a_digit_drawn_with_the_mouse_gets_a_class_and_a_radius(open_page: Open, url: str):
    visit = open_page(url)
    page = ready(visit)
    with page.expect_response("**/api/attack") as attacked:
        draw(page)
    assert read(page, "class", r"^\d$") == "7"
    attack = json.loads(attacked.value.body())
    radius = float(read(page, "radius", r"^0\.\d{4}$"))
    assert 0.01 < radius <= attack["radius"] < radius + 1e-4
    assert float(read(page, "distance", r"^0\.\d{4}$")) == pytest.approx(attack["broken"]["distance"], abs=6e-5)
    assert attack["broken"]["class"]["name"] in page.locator("#adversarial-text").text_content()
    assert page.locator("#scores tbody tr").count() == 10
    assert (visit.errors, visit.requests_leaving) == ([], [])
    assert visit.violations() == []
    page.click("#clear")
    assert page.locator("#answer").is_hidden()


def test_a_digit_drawn_with_the_keyboard(open_page: Open, url: str):
    page = ready(open_page(url))
    page.focus("#pad")
    for key, times in (("ArrowUp", 9), ("Space", 1), ("ArrowDown", 18), ("Space", 1)):
        for _ in range(times):
            page.keyboard.press(key)
    read(page, "class", "^1$")
    page.keyboard.press("Escape")
    assert page.locator("#answer").is_hidden()


def test_every_sample_digit_is_classified_and_certified(open_page: Open, url: str):
    visit = open_page(url, width=375)
    page = ready(visit)
    for digit in range(10):
        page.click(f"button[aria-label='Sample digit {digit}']")
        read(page, "class", f"^{digit}$")
        assert float(read(page, "radius", r"^0\.\d{4}$")) > 0.1
    assert visit.overflow() == 0
    assert (visit.errors, visit.violations()) == ([], [])


def test_a_sample_of_the_nets_size_is_sent_as_it_is(open_page: Open, small_url: str):
    page = ready(open_page(small_url))
    with page.expect_response("**/api/predict*") as answered:
        page.click("button[aria-label='Sample digit 1']")
    pixels = torch.tensor(json.loads(answered.value.body())["pixels"])
    expected = load("digits", "test").pixels(slice(162, 163))[0]
    assert (pixels - expected).abs().max() <= 1 / 15  # the samples have 16 grey levels, the data set has 17


def test_undo_restores_the_drawing_before_the_last_stroke(open_page: Open, url: str):
    page = ready(open_page(url))
    drawing = "document.getElementById('pad').toDataURL()"
    assert page.locator("#undo").is_disabled()
    draw(page)
    before = page.evaluate(drawing)
    draw(page, ((0.1, 0.9), (0.9, 0.9)))
    assert page.evaluate(drawing) != before
    page.click("#undo")
    assert page.evaluate(drawing) == before
    read(page, "class", "^7$")
    page.focus("#pad")
    page.keyboard.press("Control+z")
    page.locator("#answer").wait_for(state="hidden")
    assert page.locator("#undo").is_disabled()


@pytest.mark.parametrize(("width", "dark"), [(375, True), (375, False), (1440, True)])
def test_the_layout_does_not_overflow(open_page: Open, url: str, width: int, dark: bool):
    visit = open_page(url, width=width, dark=dark)
    draw(ready(visit))
    read(visit.page, "distance", r"^0\.\d{4}$")
    assert visit.overflow() == 0
    assert visit.violations() == []


def test_a_chosen_picture_is_not_changed(open_page: Open, url: str):
    page = ready(open_page(url))
    grey = np.zeros((28, 28), dtype=np.uint8)
    grey[4:24, 13:16] = 250
    file = io.BytesIO()
    Image.fromarray(grey).save(file, "PNG")
    with page.expect_response("**/api/predict*") as answered:
        page.set_input_files("#file", {"name": "one.png", "mimeType": "image/png", "buffer": file.getvalue()})
    assert (
        torch.tensor(json.loads(answered.value.body())["pixels"])[0].mul(255).round().byte().numpy().tolist()
        == grey.tolist()
    )
    read(page, "class", "^1$")


def test_a_file_that_is_not_a_picture_is_reported(open_page: Open, url: str):
    page = ready(open_page(url))
    page.set_input_files("#file", {"name": "words.png", "mimeType": "image/png", "buffer": b"words"})
    assert read(page, "error", "picture") == "words.png is not a picture that the browser can read"


def test_colour_nets_take_pictures_and_no_strokes(open_page: Open, colour_url: str):
    visit = open_page(colour_url)
    page = ready(visit)
    draw(page)
    assert page.locator("#answer").is_hidden()
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)).save(file, "JPEG")
    page.set_input_files("#file", {"name": "photo.jpg", "mimeType": "image/jpeg", "buffer": file.getvalue()})
    read(page, "class", "airplane|automobile|<b>bird")
    read(page, "distance", r"^(0\.\d{4}|never)$")
    assert "<b>bird" in page.locator("#scores").text_content()
    input_pixels = "[document.getElementById('input-image').width, document.getElementById('input-image').height]"
    assert page.evaluate(input_pixels) == [32, 32]
    assert (visit.errors, visit.requests_leaving, visit.violations(), visit.overflow()) == ([], [], [], 0)


def stripes() -> bytes:
    """Return a WebP file of 1800 x 600 pixels: a red, a green and a blue square."""
    field, file = np.zeros((600, 1800, 3), dtype=np.uint8), io.BytesIO()
    for channel in range(3):
        field[:, 600 * channel : 600 * (channel + 1), channel] = 255
    Image.fromarray(field).save(file, "WEBP", lossless=True)
    return file.getvalue()


def means(response: Any) -> list[float]:
    return torch.tensor(json.loads(response.body())["pixels"]).mean((1, 2)).tolist()


@pytest.mark.parametrize(("width", "dark"), [(375, False), (1440, True)])
def test_a_photograph_is_cropped_or_resized(open_page: Open, colour_url: str, width: int, dark: bool):
    visit = open_page(colour_url, width=width, dark=dark)
    page = ready(visit)
    with page.expect_response("**/api/predict?fit=crop") as cropped:
        page.set_input_files("#file", {"name": "photo.webp", "mimeType": "image/webp", "buffer": stripes()})
    assert means(cropped.value) == pytest.approx([0, 1, 0], abs=0.02)
    with page.expect_response("**/api/predict?fit=resize") as resized:
        page.check("input[value=resize]")
    assert means(resized.value) == pytest.approx([1 / 3] * 3, abs=0.02)
    assert re.search(r"^\d+\.\d/255", read(page, "levels", "255"))
    assert (visit.errors, visit.violations(), visit.overflow()) == ([], [], 0)


def test_the_strongest_attack_within_a_chosen_epsilon_is_shown(open_page: Open, colour_url: str):
    page = ready(open_page(colour_url))
    page.set_input_files("#file", {"name": "photo.webp", "mimeType": "image/webp", "buffer": stripes()})
    radius = float(read(page, "radius", r"^0\.\d{4}$"))
    read(page, "distance", r"^(0\.\d{4}|never)$")
    for eps, text in ((radius, "^Certified: still"), (1.0, "^Adversarial image|^Not broken: still")):
        with page.expect_response("**/api/attack") as attacked:
            page.fill("#eps", str(255 * eps))
            page.locator("#eps").press("Enter")
        attack = json.loads(attacked.value.body())
        assert attack["trials"][0]["eps"] == pytest.approx(eps)
        assert attack["strongest"]["class"]["name"] in read(page, "adversarial-text", text)
    page.check("input[value=closest]")
    read(page, "adversarial-text", "^Adversarial image|^No attack")
