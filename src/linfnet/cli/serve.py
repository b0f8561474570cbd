"""`linfnet serve`: draw a digit or drop an image, see class, certified radius and how far an attack gets."""

import contextlib
import webbrowser
from dataclasses import dataclass
from pathlib import Path

import tyro

from linfnet.cli.console import console
from linfnet.errors import require


@dataclass(frozen=True)
class Serve:
    """Serve a page and a JSON API for one net on this machine."""

    model: tyro.conf.Positional[Path] = Path("mnist-small")
    """A finished run, any folder with model.safetensors and config.json, mnist-small, or hf://user/name."""
    host: str = "127.0.0.1"
    """Where to listen. Others can reach the server only if this is not a loopback address."""
    port: int = 8000
    """The port; 0 for any free one."""
    open: bool = False
    """Open the page in the browser."""

    def run(self) -> int:
        """Serve until interrupted."""
        for module in ("fastapi", "uvicorn", "PIL"):
            require(module, "serve")
        from linfnet.serve import Service, bind, run_server, url_of

        bound = bind(self.host, self.port)
        with bound:
            service = Service(self.model)
            url = url_of(bound, self.host)
            console.print(f"serving {service.name} on {url} (Ctrl-C ends it)")
            if self.open:
                webbrowser.open(url)
            # Ctrl-C is how a server ends, not a mistake.
            with contextlib.suppress(KeyboardInterrupt):
                run_server(service, bound, frozenset({"localhost", self.host}))
        return 0
