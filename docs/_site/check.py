"""Check the built site: every link and anchor has a target, and no page loads a file from another server.

python docs/_site/check.py FOLDER
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose target a browser loads without a click.
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("video", "src")}


class Page(HTMLParser):
    """The anchors and links of one page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "__top"}
        self.wanted: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            if name in ("href", "src"):
                self.wanted.append((value, (tag, name) in LOADED and ("rel", "canonical") not in attrs))


def check_site(site: Path) -> list[str]:
    """Return one line for each error in the site; an empty list if there is none."""
    pages: dict[Path, Page] = {}
    wrong: list[str] = []
    for path in sorted(site.rglob("*.html")):
        pages[path.resolve()] = page = Page()
        text = path.read_text(encoding="utf-8")
        page.feed(text)
        if re.search(r"<blockquote>\s*<blockquote>", text):
            wrong.append(f"{path.name}: an example (>>>) was rendered as quotations")
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link, loaded in page.wanted:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https") or parts.netloc:
                if loaded:
                    wrong.append(f"{path.name}: loads {link} from another server")
                continue
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or site.resolve() not in target.parents:
                wrong.append(f"{path.name}: {link} has no target")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                wrong.append(f"{path.name}: {link} has no such anchor")
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        wrong += [
            f"{style.name}: loads a file from another server"
            for sign in ("url(http", "url(//", "@import")
            if sign in text
        ]
    return wrong if pages else [f"{site} has no pages"]


if __name__ == "__main__":
    found = check_site(Path(sys.argv[1]))
    sys.stderr.writelines(f"{line}\n" for line in found)
    sys.stdout.write(f"{sys.argv[1]}: {len(found)} errors (links, anchors, examples)\n")
    sys.exit(bool(found))
