"""The report in a browser: from disk, by mouse and by keyboard."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import Open, Visit

from linfnet.cli.main import main
from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.errors import ArgumentError
from linfnet.report import read_run, render
from linfnet.results import Result, read_results


def measured(run: Path) -> dict[str, Result]:
    """Return the evaluations of a run by epsilon."""
    return {format_epsilon(result.eps): result for result in read_results(run).evaluations}


def read_out(visit: Visit, chart: str = "curve") -> dict[str, str]:
    """Return the displayed read-out of a chart by key."""
    found: list[Any] = visit.page.locator(f"#{chart}-readout [data-key]").all()
    return {item.get_attribute("data-key"): item.text_content() for item in found}


def in_percent(result: Result) -> dict[str, str]:
    margin, interval = result.certified["margin"], result.certified["interval"]
    shares = {"certified": margin, "interval": interval, "attacked": result.attacked, "clean": result.clean}
    return {name: f"{100 * share:.2f} %" for name, share in shares.items()}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440])
def test_it_opens_from_disk_and_fits(open_page: Open, report: Path, width: int, dark: bool):
    visit = open_page(report, width=width, dark=dark)
    assert visit.page.locator(".plot svg").count() == 8
    assert visit.errors == []
    assert visit.requests_leaving == []
    assert [url for url in visit.requests if url.startswith("file:")] == [report.resolve().as_uri()]
    assert visit.overflow() == 0
    assert visit.violations() == []
    beyond = visit.page.locator("#results .scroll").evaluate("box => box.scrollWidth - box.clientWidth")
    assert beyond <= 0, "the table of results fits a phone"
    names = visit.page.locator("#histogram-plot text").all_text_contents()
    assert "correct, not certified" in names


def test_hovering_the_curve_reads_what_was_measured(open_page: Open, report: Path, evaluated: Path):
    visit = open_page(report)
    box = visit.page.locator("#curve-plot")
    box.scroll_into_view_if_needed()
    place = box.bounding_box()
    figures = json.loads(visit.page.locator("#figures").text_content())
    low, high = place["x"] + 44, place["x"] + place["width"] - 12  # the margins of the chart
    for eps, result in measured(evaluated).items():
        value = 8 / 255 if eps == "8/255" else float(eps)
        visit.page.mouse.move(low + (high - low) * value / figures["curve"]["end"] + 2, place["y"] + 100)
        assert read_out(visit) == {"eps": eps, **in_percent(result)}
    visit.page.mouse.move(5, 5)
    assert read_out(visit) == {"eps": "0.1", **in_percent(measured(evaluated)["0.1"])}, "the recipe's epsilon at rest"


def test_keys_and_typing_read_any_epsilon(open_page: Open, report: Path, evaluated: Path):
    visit = open_page(report, width=375)
    box = visit.page.locator("#curve-plot")
    box.focus()
    visit.page.keyboard.press("Home")
    clean = in_percent(measured(evaluated)["0.1"])["clean"]
    assert read_out(visit)["certified"] == clean == read_out(visit)["clean"]
    seen = set()
    for _ in range(40):
        visit.page.keyboard.press("ArrowRight")
        seen.add(read_out(visit)["eps"])
    assert "0.02" in seen
    assert len(seen) == 40
    assert "certified" in box.get_attribute("aria-valuetext")
    visit.page.keyboard.press("End")
    assert float(read_out(visit)["certified"].split()[0]) < 2
    visit.page.locator("#ask-eps").fill("8/255")
    visit.page.keyboard.press("Enter")
    assert read_out(visit) == {"eps": "8/255", **in_percent(measured(evaluated)["8/255"])}


REFUSED = ("", "eight", "8", "255", "256", "-1", "0,1", "10%", "1e999", "1/0", "8//255", "0x1", "nan", "١")
ACCEPTED = ("8/255", " 8 / 255 ", "2e-2", "1e-2", ".07", "0.", "+0.1", "1", "25.5/255")


def test_the_typed_epsilon_follows_the_rules_of_the_command_line(open_page: Open, report: Path):
    visit = open_page(report, width=375)
    field, error = visit.page.locator("#ask-eps"), visit.page.locator("#ask-error")
    for text in (*ACCEPTED, *REFUSED):
        before = read_out(visit)
        field.fill(text)
        visit.page.keyboard.press("Enter")
        assert (field.get_attribute("aria-invalid") == "true") == (text in REFUSED)
        if text in REFUSED:
            with pytest.raises(ArgumentError):
                parse_epsilon(text)
            assert read_out(visit) == before
            assert "expected a number" in error.text_content()
            assert ("did you mean" in error.text_content()) == (text in ("8", "255"))
        else:
            shown = read_out(visit)["eps"]
            assert float(parse_epsilon(shown)) == pytest.approx(float(parse_epsilon(text)), abs=1e-4)
            assert error.text_content() == ""
    assert error.get_attribute("role") == "alert"  # announced when it changes
    assert visit.overflow() == 0
    assert visit.violations() == []


def test_between_measured_points_the_curve_counts_radii(open_page: Open, report: Path, evaluated: Path):
    import csv

    visit = open_page(report)
    visit.page.locator("#ask-eps").fill("0.07")
    visit.page.keyboard.press("Enter")
    (file,) = evaluated.glob("samples-*.csv")
    with file.open(newline="") as lines:
        radii = [float(row["margin_radius"]) for row in csv.DictReader(lines)]
    message = read_out(visit)
    assert message["certified"] == f"{100 * sum(radius >= 0.07 for radius in radii) / len(radii):.2f} %"
    assert message["attacked"] == f"at most {100 * measured(evaluated)['8/255'].attacked:.2f} %"
    assert "interval" not in message


def test_training_curves_and_histogram_are_read_by_keys(open_page: Open, report: Path, evaluated: Path):
    visit = open_page(report)
    lines = (evaluated / "events.jsonl").read_text().splitlines()
    epochs = [event for event in map(json.loads, lines) if event["event"] == "epoch"]
    visit.page.locator("#training-1-plot").focus()
    for event in reversed(epochs):
        message = read_out(visit, "training-1")
        assert message["epoch"] == str(event["epoch"])
        assert float(message["loss"]) == pytest.approx(event["loss"], rel=1e-3)
        visit.page.keyboard.press("ArrowLeft")
    total, plot = 0, visit.page.locator("#histogram-plot")
    plot.focus()
    visit.page.keyboard.press("Home")
    for _ in range(300):
        before = plot.get_attribute("aria-valuenow")
        total += int(visit.page.locator("#histogram-readout [data-key=count]").get_attribute("data-value"))
        visit.page.keyboard.press("ArrowRight")
        if plot.get_attribute("aria-valuenow") == before:
            break
    assert total == measured(evaluated)["0.1"].count


def test_the_gallery_has_images(open_page: Open, report: Path):
    visit = open_page(report)
    images = visit.page.locator("#gallery img")
    assert images.count() >= 30
    widths = images.evaluate_all("images => images.map(image => image.complete && image.naturalWidth)")
    assert set(widths) == {8}
    text = visit.page.locator("#gallery").text_content()
    for heading in (
        "Most robust",
        "Barely certified at ε = 0.1",
        "Broken at ε = 0.1",
        "Least robust",
        "Misclassified by",
    ):
        assert heading in text
    assert visit.page.locator("#gallery ul.wide li").first.locator("img").count() == 3


def test_several_runs_share_their_axes(open_page: Open, evaluated: Path, trained: Path, tmp_path: Path):
    file = tmp_path / "both.html"
    assert main(["report", str(evaluated), str(trained), "--out", str(file)]) == 0
    for width in (375, 1440):
        visit = open_page(file, width=width)
        assert (visit.errors, visit.requests_leaving, visit.overflow(), visit.violations()) == ([], [], 0, [])
    names = visit.page.locator("#training-0-readout [data-key]").evaluate_all("all => all.map(one => one.dataset.key)")
    assert names == ["epoch", "evaluated", "trained"]
    assert "trained: The net has not been evaluated" in visit.page.locator("header").text_content()


def test_without_radii_the_curve_tells_what_follows(open_page: Open, evaluated: Path, tmp_path: Path):
    folder = tmp_path / "run"
    shutil.copytree(evaluated, folder)
    for file in folder.glob("samples-*"):
        file.unlink()
    assert main(["report", str(folder)]) == 0
    visit = open_page(folder / "report.html", width=375)
    assert (visit.errors, visit.overflow(), visit.violations()) == ([], 0, [])
    best = measured(evaluated)["0.1"].best_certified
    visit.page.locator("#ask-eps").fill("0.07")
    visit.page.keyboard.press("Enter")
    assert read_out(visit)["certified"] == f"at least {100 * best:.2f} %"


def test_a_dot_stays_with_the_name_of_its_run(open_page: Open, trained: Path, tmp_path: Path):
    run, file = read_run(trained), tmp_path / "page.html"
    file.write_text(render([replace(run, name=f"run-{k}") for k in range(30)]), encoding="utf-8")
    visit = open_page(file, width=375)
    lines = visit.page.evaluate("[...document.querySelectorAll('.lead .key')].map(key => key.getClientRects().length)")
    assert lines == [1] * 30
    assert visit.overflow() == 0
