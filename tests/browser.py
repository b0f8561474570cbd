"""A real browser for tests of pages: headless Chromium, what it said and asked for, and an accessibility check."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# As root there is no sandbox; the rest keeps the browser on this machine.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
]
LOCAL = ("file:", "data:", "blob:", "http://127.0.0.1:", "http://localhost:", "ws://127.0.0.1:", "ws://localhost:")


@dataclass
class Visit:
    """A page that was opened, with all that it complained of and asked for since."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def requests_leaving(self) -> list[str]:
        """Requests to anything but this machine."""
        return [url for url in self.requests if not url.startswith(LOCAL)]

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def violations(self) -> list[str]:
        """What axe-core finds against the WCAG rules up to level AA and its best practices, a line for each element."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [f"{rule['id']}: {node['html'][:150]}" for rule in found for node in rule["nodes"]]


def chromium() -> str | None:
    """Where Debian's or the user's Chromium is."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium; tests that need it are skipped where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright, of the extra `dev`")
    path = chromium()
    if path is None:
        pytest.skip("browser tests need Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=FLAGS, chromium_sandbox=False)
        yield running
        running.close()


Open = Callable[..., Visit]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Open an address or a file: `open_page(target, width=1440, height=900, dark=False)`."""
    with contextlib.ExitStack() as contexts:

        def visit(target: str | Path, *, width: int = 1440, height: int = 900, dark: bool = False) -> Visit:
            scheme = "dark" if dark else "light"
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
            )
            contexts.callback(context.close)
            seen = Visit(context.new_page())
            seen.page.on("console", lambda said: said.type in ("error", "warning") and seen.errors.append(said.text))
            seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
            seen.page.on("request", lambda request: seen.requests.append(request.url))
            seen.page.goto(target.resolve().as_uri() if isinstance(target, Path) else target)
            return seen

        yield visit
