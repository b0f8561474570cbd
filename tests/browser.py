"""A browser for tests of pages: headless Chromium with its messages and requests, and an accessibility check."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# The sandbox does not work as root; the other flags keep the browser from using the network.
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
    """An open page, with its error messages and requests."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def requests_leaving(self) -> list[str]:
        """Requests to other machines."""
        return [url for url in self.requests if not url.startswith(LOCAL)]

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def violations(self) -> list[str]:
        """Return the violations of WCAG rules (level AA) and best practices that axe-core finds, one line each."""
        from axe_playwright_python.sync_playwright import Axe

        response = Axe().run(self.page).response
        return [f"{rule['id']}: {node['html'][:150]}" for rule in response["violations"] for node in rule["nodes"]]


def chromium() -> str | None:
    """Return the path of Chromium, or None."""
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
            opened = Visit(context.new_page())
            opened.page.on(
                "console", lambda message: message.type in ("error", "warning") and opened.errors.append(message.text)
            )
            opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
            opened.page.on("request", lambda request: opened.requests.append(request.url))
            opened.page.goto(target.resolve().as_uri() if isinstance(target, Path) else target)
            return opened

        yield visit
