"""Take the pictures of the first page of the documentation: a report, and the page of `linfnet serve`.

    python -m tools.screenshots

It trains the digits recipe, writes its report, and serves the packaged net; this takes a minute. It needs the extra
`dev` and Chromium, and writes docs/images/report.png and docs/images/serve.png.
"""

import contextlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WIDTH = 1180
# A seven, as fractions of the drawing area.
STROKES = ((0.25, 0.25), (0.75, 0.25), (0.45, 0.85))
COLOURS = 96


@contextlib.contextmanager
def browser_page(playwright: Any) -> Generator[Any]:
    """Context with an empty page in headless Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        sys.exit("Chromium was not found; on Debian: apt-get install chromium")
    browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
    try:
        yield browser.new_context(
            viewport={"width": WIDTH, "height": 720}, device_scale_factor=1.5, reduced_motion="reduce"
        ).new_page()
    finally:
        browser.close()


def save(page: Any, name: str, last: str) -> None:
    """Write the page down to the end of the element `last` as a PNG file with a palette."""
    from PIL import Image

    box = page.locator(last).bounding_box()
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": box["y"] + box["height"] + 6}
    shot = io.BytesIO(page.screenshot(full_page=True, clip=clip))
    picture = Image.open(shot).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    picture.save(IMAGES / name, optimize=True)
    sys.stdout.write(f"{IMAGES / name}: {(IMAGES / name).stat().st_size} bytes\n")


def linfnet(*words: str) -> list[str]:
    """Return the command line of a linfnet command."""
    return [sys.executable, "-m", "linfnet", *words]


def main() -> None:
    """Take both pictures."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright, browser_page(playwright) as page:
        run = Path(folder) / "first"
        for words in (("train", "digits", "--out", str(run)), ("evaluate", str(run)), ("report", str(run))):
            subprocess.run(linfnet(*words), check=True, stdout=subprocess.DEVNULL)
        page.goto((run / "report.html").as_uri())
        page.wait_for_timeout(500)
        save(page, "report.png", "#curve svg >> nth=0")
        server = subprocess.Popen(
            linfnet("serve", "mnist-small", "--port", "0"), stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        assert server.stdout is not None
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())
        page.goto(url)
        page.wait_for_selector("html[data-ready]", state="attached")
        box = page.locator("#pad").bounding_box()
        points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in STROKES]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point, steps=20)
        page.mouse.up()
        page.locator("#distance", has_text=re.compile(r"^0\.\d{4}$")).wait_for(timeout=60_000)
        page.mouse.move(1, 1)
        save(page, "serve.png", "#adversarial-text")
        server.terminate()
        server.wait(20)


if __name__ == "__main__":
    main()
