"""Every code block of README and docs runs; blocks that need other data, a GPU or hours of time are only parsed."""

import contextlib
import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
from browser import Open

import linfnet
from linfnet.cli.main import _parse, main
from linfnet.cli.train import Train
from linfnet.epsilon import parse_epsilon
from linfnet.recipes import load_recipe
from linfnet.results import results_from_json

ROOT = Path(__file__).parent.parent
# test_extending.py runs the examples of this page.
ELSEWHERE = {"docs/extending.md"}
PAGES = [path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
RUNNABLE = [page for page in PAGES if "```" in (ROOT / page).read_text(encoding="utf-8") and page not in ELSEWHERE]
# Shortens the training runs of the documentation.
SHORT = ("schedule.epochs=[1, 2, 1]", "width=24", "limit=200", "test_every=0")


@dataclass(frozen=True)
class Block:
    """A fenced block and the HTML comment in the line above it."""

    language: str
    text: str
    mark: str


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"(?:<!-- ([^\n]*?) -->\n)?^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(found) * 2 == len(re.findall(r"^```", text, re.MULTILINE)), f"{page}: a fence is not closed"
    return [Block(language, body, mark) for mark, language, body in found]


def commands(block: Block) -> list[list[str]]:
    """Return the command lines of a console block as words, without comments."""
    return [words for line in block.text.splitlines() if (words := shlex.split(line, comments=True))]


def parse(words: list[str]) -> None:
    """Check a command line that is not run: the command, its options and its recipe with all changes."""
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets)
    elif words[0] in ("linfnet", "torchrun"):
        command = _parse(words[words.index("linfnet") + 1 :])
        if isinstance(command, Train) and command.resume is None:
            load_recipe(command.recipe, [change for part in command.set for change in part])
    else:
        assert words == ["source", ".venv/bin/activate"], words


class Reader:
    """Runs the blocks of a page in order, in the current folder."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {"__name__": "page"}
        self.port: str | None = None
        self.servers: list[subprocess.Popen[str]] = []

    def follow(self, block: Block, page: str) -> None:
        if included := re.fullmatch(r"--8<--\n(examples/\w+\.py)\n--8<--\n", block.text):
            assert (ROOT / included[1]).is_file(), included[1]  # test_examples.py runs it
        elif block.language == "python":
            text = block.text if self.port is None else block.text.replace(":8000/", f":{self.port}/")
            exec(compile(text, page, "exec"), self.names)
        elif block.language == "toml":
            tomllib.loads(block.text)
        else:
            for words in commands(block):
                if block.mark or words[0] != "linfnet":
                    parse(words)
                elif words[1] == "serve":
                    self.serve(words[2:])
                else:
                    self.run(words[1:], page)

    def run(self, words: list[str], page: str) -> None:
        command = _parse(words)
        if isinstance(command, Train):
            if command.out is not None and command.out.exists():
                return  # trained by an earlier page
            command = replace(command, set=(*command.set, SHORT), device="cpu")
            assert command.run() == 0, f"{page}: {words}"
        else:
            assert main(words) == 0, f"{page}: {words}"

    def serve(self, words: list[str]) -> None:
        words = [word for word in words if word != "--open"]
        command = [sys.executable, "-m", "linfnet", "serve", *words, "--port", "0"]
        self.servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stream = self.servers[-1].stdout
        assert stream is not None
        (self.port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/", stream.readline())

    def leave(self) -> None:
        for server in self.servers:
            server.terminate()
            server.wait(20)
            assert server.stdout is not None
            server.stdout.close()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the two runs that the pages use."""
    folder = tmp_path_factory.mktemp("desk")
    for name in ("first", "wide"):
        out = str(folder / "runs" / name)
        assert main(["train", "digits", "--out", out, "--device", "cpu", "--set", *SHORT]) == 0
    assert main(["evaluate", str(folder / "runs" / "first"), "--steps", "2", "--limit", "50"]) == 0
    return folder


@pytest.fixture
def reader(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(desk)
    reader = Reader()
    yield reader
    reader.leave()


@pytest.mark.process
@pytest.mark.parametrize("page", RUNNABLE)
def test_every_block_runs(page: str, reader: Reader):
    for block in blocks(page):
        assert block.language in ("python", "console", "toml", "text"), f"{page}: a block in {block.language!r}"
        assert block.mark in ("", "parsed only"), f"{page}: {block.mark}"
        if block.language != "text":
            reader.follow(block, page)


def test_every_command_of_the_readme_has_help(capsys: pytest.CaptureFixture[str]):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    names = {line.split()[0] for line in re.findall(r"`linfnet ([^`]*)`", readme)}
    assert {"train", "evaluate", "predict", "recipes", "data", "doctor", "demo"} <= names
    for name in sorted(names):
        with contextlib.suppress(SystemExit):
            main([name, "--help"])
        assert f"usage: linfnet {name}" in capsys.readouterr().out


def test_a_wrong_block_is_seen(reader: Reader):
    with pytest.raises(NameError):
        reader.follow(Block("python", "undefined_name", ""), "page")
    with pytest.raises(linfnet.errors.LinfnetError):
        reader.follow(Block("console", "linfnet train digits --out runs/x --no-such-option", "parsed only"), "page")
    with pytest.raises(linfnet.errors.LinfnetError):
        reader.follow(Block("console", "linfnet train digits --set no_such_key=1", "parsed only"), "page")
    with pytest.raises(AssertionError):
        reader.follow(Block("console", "make nothing", ""), "page")


def test_links_between_files_hold():
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            if not target.startswith(("https://", "http://")):
                generated = target.removeprefix("../") == "results.md"
                assert generated or ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_every_page_is_in_the_navigation():
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    written = {path.removeprefix("docs/") for path in PAGES if path.startswith("docs/")}
    assert sorted(listed) == sorted(written | {"results.md", "reference/cli.md"})  # two pages are generated


def test_the_reference_lists_all_public_names():
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    public = {
        name for name, value in vars(linfnet).items() if not (name.startswith("_") or isinstance(value, ModuleType))
    }
    documented = {name.rsplit(".", 1)[1] for name in re.findall(r"^::: (\S+)", page, re.MULTILINE)}
    assert public <= documented, public - documented


def test_generated_pages():
    pages = runpy.run_path(str(ROOT / "docs" / "_site" / "pages.py"))
    page, demo = pages["results"](), json.loads((ROOT / "records" / "demo.json").read_text())
    (result,) = (
        result
        for result in results_from_json(demo["results"]).evaluations
        if result.images == "digits-test" and result.eps == parse_epsilon("0.1")
    )
    shares = (result.clean, result.attacked, result.best_certified)
    assert f"| 0.1 | {' | '.join(f'{100 * share:.2f}' for share in shares)} |" in page.split("### demo\n")[1]
    assert page.index("## Summary") < page.index("## By record")
    # A published figure belongs to one epsilon and one kind of net.
    papers = dict(re.findall(r"^### ([\w.-]+)\n(?:.*\n)*?\| \d[^|]*\|.*\| (\S+) \|$", page, re.MULTILINE))
    assert papers["cifar10-8-hybrid-small"] == "35.42"
    assert "\n| 8/255, first 1000 images, PGD-20 | 36.20 |" in page  # next to the row of all images
    assert papers["mnist-0.1-hybrid-small"] == papers["mnist-0.3-ibp"] == papers["cifar10-smoothing-0.25"] == "–"
    reference = pages["command_line"]()
    assert "## linfnet train\n\n```text\nusage: linfnet train" in reference
    assert {"serve", "report", "demo"} <= set(re.findall(r"^## linfnet (\w+)$", reference, re.MULTILINE))


def test_faults_of_the_site_are_found(tmp_path: Path):
    check_site = runpy.run_path(str(ROOT / "docs" / "_site" / "check.py"))["check_site"]
    page = tmp_path / "index.html"
    page.write_text('<a href="#here">x</a><p id="here"><blockquote>said</blockquote>')
    assert check_site(tmp_path) == []
    page.write_text('<a href="#there">x</a><blockquote>\n<blockquote>import torch</blockquote></blockquote>')
    assert check_site(tmp_path) == [
        "index.html: an example (>>>) was rendered as quotations",
        "index.html: #there has no such anchor",
    ]


def test_the_built_site_stays_at_home(open_page: Open):
    """Only if `make docs` has built the site; that also checks the links."""
    site = ROOT / "build" / "site"
    if not (site / "index.html").exists():
        pytest.skip("make docs has not been run")
    for page in ("index.html", "results.html", "reference/api.html"):
        visit = open_page(site / page, width=375)
        assert (visit.requests_leaving, visit.overflow()) == ([], 0)
        assert [error for error in visit.errors if "CORS" not in error and "fetch" not in error] == []
