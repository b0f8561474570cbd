"""The contents of a report, and its notes about missing parts."""

import base64
import io
import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from linfnet.certificates.rounding import float_above
from linfnet.cli.main import main
from linfnet.data import ImageSet, load, set_info, to_pixels
from linfnet.epsilon import parse_epsilon
from linfnet.evaluation import AtEpsilon, Broken, Evaluation, save_evaluation
from linfnet.recipes import load_recipe, recipe_to_toml
from linfnet.report import read_run, render
from linfnet.report.charts import certified_curve, histogram, training_panels
from linfnet.report.gallery import encode_png, gallery
from linfnet.report.page import commands
from linfnet.report.results_table import published
from linfnet.results import AttackSettings, add_evaluations, read_results


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 7), (1, 1, 1)], ids=str)
def test_png_keeps_every_byte(shape: tuple[int, int, int]):
    levels = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0))
    with Image.open(io.BytesIO(encode_png(levels / 255))) as picture:
        array = np.asarray(picture)
    assert (array.reshape(shape[1], shape[2], shape[0]).transpose(2, 0, 1) == levels.numpy()).all()


def test_the_curve_passes_through_what_was_measured(evaluated: Path):
    run = read_run(evaluated)
    figure = certified_curve([run])
    (line,) = figure["runs"]
    radii = np.frombuffer(base64.b64decode(line["radii"]), "<f8")
    assert (np.diff(radii[np.isfinite(radii)]) >= 0).all()
    results = read_results(evaluated)
    assert [point["name"] for point in line["measured"]] == ["0.02", "8/255", "0.1", "0.25"]
    for point in line["measured"]:
        result = results.find("digits", parse_epsilon(point["name"]), attack=AttackSettings("pgd", 10))
        assert result is not None
        assert point["eps"] == float_above(result.eps)
        assert (radii >= point["eps"]).mean() == result.certified["margin"] == point["certified"]
        assert (point["attacked"], point["others"]) == (result.attacked, {"interval": result.certified["interval"]})
    assert figure["end"] >= 0.25


def test_the_histogram_holds_every_sample_and_meets_at_epsilon(evaluated: Path):
    run = read_run(evaluated)
    figure = histogram([run])
    (bars,) = figure["runs"]
    assert sum(bars["counts"]) == bars["total"] == len(run.samples) == 360
    assert figure["eps"] / figure["width"] == pytest.approx(round(figure["eps"] / figure["width"]))
    right = sum(bars["counts"][-figure["first"] :])
    assert right == (run.samples.real_radii >= 0).sum()


def test_panels_have_all_epochs(evaluated: Path):
    panels = {panel["title"]: panel for panel in training_panels([read_run(evaluated)])}
    assert list(panels) == ["Accuracy", "Loss", "Training margins", "Exponent p", "Mixing λ", "Temperature s"]
    assert [point[0] for point in panels["Loss"]["series"][0]["points"]] == list(range(1, 11))
    assert [series["name"] for series in panels["Accuracy"]["series"]][-1] == "certified at 0.1"
    assert len(panels["Accuracy"]["series"][-1]["points"]) == 5
    assert panels["Loss"]["phases"]["ends"] == [4, 8, 10]


def test_the_gallery_is_sorted_and_true(evaluated: Path):
    run = read_run(evaluated)
    groups = {group.id: group for group in gallery(run, levels=False)}
    assert list(groups) == ["most", "barely", "broken", "least", "misclassified"]
    radii = {name: [float(card.lines[0].split()[-1]) for card in group.cards]
             for name, group in groups.items() if name != "misclassified"}  # fmt: skip
    assert radii["most"] == sorted(radii["most"], reverse=True)
    assert radii["most"][0] == pytest.approx(run.samples.radii.max(), abs=1e-4)
    assert radii["least"] == sorted(radii["least"])
    assert 0.1 <= radii["barely"][0] <= radii["barely"][-1] <= radii["most"][0]
    assert all(radius < 0.1 for radius in radii["broken"])
    images = load("digits", "test")
    for card in groups["most"].cards:
        k = int(re.search(r"image (\d+)", card.pictures[0].alt)[1])
        assert card.title == str(images.labels[k].item()) == str(run.samples.predictions[k])
        with Image.open(io.BytesIO(base64.b64decode(card.pictures[0].uri.split(",")[1]))) as picture:
            assert (np.asarray(picture) == (images.pixels()[k, 0].numpy() * 255).round()).all()


def test_a_run_that_is_only_trained_says_so(trained: Path):
    page = render([read_run(trained)])
    assert f"has not been evaluated on its test images. Evaluate it with: linfnet evaluate {trained}" in page
    assert "Measured on the test images during training" in page
    assert 'id="training"' in page
    assert not re.search('<section id="(curve|gallery|margins)"', page)


def test_an_unfinished_run_says_so(trained: Path, tmp_path: Path):
    folder = tmp_path / "in two words"
    folder.mkdir()
    for name in ("recipe.toml", "env.json", "events.jsonl"):
        shutil.copy(trained / name, folder)
    assert f"The run has not finished. Resume it with: linfnet train --resume '{folder}'" in read_run(folder).notes
    (folder / "events.jsonl").unlink()
    assert "no epoch has been logged" in render([read_run(folder)])


def test_missing_samples_and_images_are_told(evaluated: Path, tmp_path: Path):
    folder = tmp_path / "run"
    shutil.copytree(evaluated, folder)
    for file in folder.glob("*.broken.safetensors"):
        file.unlink()
    page = render([read_run(folder)])
    assert "Images that break the net were not saved" in page
    assert "Most robust" in page
    assert "Broken at" not in page
    (table,) = folder.glob("samples-*.csv")
    table.unlink()
    page = render([read_run(folder)])
    assert "The table of samples is missing" in page
    assert certified_curve([read_run(folder)])["runs"][0]["radii"] is None
    assert not re.search('<section id="(gallery|margins)"', page)


def test_certified_radii_alone_give_curve_and_gallery(trained: Path, tmp_path: Path):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    assert main(["certify", str(folder), "--out", str(folder)]) == 0
    run = read_run(folder)
    figure = certified_curve([run])
    assert figure["runs"][0]["measured"] == []
    assert len(base64.b64decode(figure["runs"][0]["interval"])) == 360 * 8
    page = render([run])
    assert "Most robust" in page
    assert "No attack has been run" in page


def test_a_model_folder_without_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    folder = tmp_path / "net"
    assert main(["construct", "digits", "--limit", "200", "--out", str(folder)]) == 0
    assert main(["evaluate", str(folder), "--data", "digits", "--eps", "0.1", "--limit", "50", "--steps", "2"]) == 0
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Most robust" in page
    assert "The version of linfnet that trained the net is not recorded." in page
    assert "evaluate" in commands(read_run(folder))[0]
    assert "--data digits --eps 0.1 --limit 50 --steps 2" in commands(read_run(folder))[0]


def test_the_commands_repeat_the_run(evaluated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import shlex

    train, evaluate = (shlex.split(line)[1:] for line in commands(read_run(evaluated)))
    again = tmp_path / "again"
    train[-1] = evaluate[1] = str(again)
    assert main(train) == 0
    assert main(evaluate) == 0
    ours, theirs = read_results(evaluated), read_results(again)
    untimed = [replace(found.training, seconds=0.0, cpu_seconds=None) for found in (ours, theirs)]
    assert untimed[0] == untimed[1]
    untimed = [[replace(r, seconds=0.0, certify_seconds={}) for r in e.evaluations] for e in (ours, theirs)]
    assert untimed[0] == untimed[1]


def test_no_log_of_the_authors_stands_beside_other_images(evaluated: Path):
    run = read_run(evaluated)
    recipe = load_recipe("mnist-0.3")
    assert [source for source, _ in published(replace(run, recipe=recipe))] == [
        "the paper (450 epochs)",
        "the authors' log",
    ]
    assert published(replace(run, recipe=load_recipe("mnist-0.3", ["data.name=digits"]))) == []


@pytest.mark.parametrize(("asked", "option"), [(100, ["--steps", "100"]), (20, [])])
def test_the_commands_take_the_steps_of_the_attack_not_the_recipes(evaluated: Path, asked: int, option: list[str]):
    run = read_run(evaluated)
    assert run.recipe is not None
    recipe = replace(run.recipe, evaluation=replace(run.recipe.evaluation, pgd_steps=20))
    run = replace(run, recipe=recipe, main=tuple(replace(m, attack=AttackSettings("pgd", asked)) for m in run.main))
    words = commands(run)[-1].split()
    assert words[words.index("0.25") + 1 :] == option


@pytest.mark.parametrize("name", ["<script>alert(1)<", "<!--<script>"])
def test_names_cannot_break_the_page(evaluated: Path, tmp_path: Path, name: str):
    folder = tmp_path / name
    shutil.copytree(evaluated, folder)
    page = render([read_run(folder), read_run(evaluated)])
    before, after = page.split('id="figures">')
    data = after.split("</script>")[0]
    assert name not in before
    assert "<" not in data  # "<!--<script" would hide the end of the element, and "</script" would end it
    assert json.loads(data)["curve"]["runs"][0]["name"] == folder.name


def test_a_run_given_twice_is_shown_once(evaluated: Path, trained: Path, tmp_path: Path):
    file = tmp_path / "page.html"
    runs = [str(evaluated), str(trained), str(evaluated), str(trained / ".." / evaluated.name)]
    assert main(["report", *runs, "--out", str(file)]) == 0
    page = file.read_text(encoding="utf-8")
    assert "<h1>2 runs compared</h1>" in page
    assert re.findall(r'<span class="key c\d">(\w+)</span>', page)[:2] == [evaluated.name, trained.name]
    assert render([read_run(evaluated), read_run(evaluated)])


def test_attacks_of_different_lengths_are_told_so(evaluated: Path, tmp_path: Path):
    folder = tmp_path / "other"
    shutil.copytree(evaluated, folder)
    assert main(["evaluate", str(folder), "--eps", "0.1", "--steps", "100"]) == 0
    assert "Dots show the accuracy under PGD-10 " in render([read_run(evaluated)])
    assert "Dots show the accuracy under PGD at" in render([read_run(evaluated), read_run(folder)])
    assert "evaluated, PGD-10" in render([replace(read_run(folder), name="evaluated")])


def test_lines_that_are_no_event_are_left_out(evaluated: Path, tmp_path: Path):
    folder = tmp_path / "run"
    shutil.copytree(evaluated, folder)
    with (folder / "events.jsonl").open("a") as log:
        log.write('{"step": 1}\n{"event": 7}\n')
    assert training_panels([read_run(folder)]) == training_panels([read_run(evaluated)])


def _cut(table: Path) -> None:
    """Keep only the header and 99 samples."""
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:100]))


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda run: next(run.glob("samples-*.csv")).write_text("index,label\n0,1\n"), "is not a table of samples"),
        (lambda run: next(run.glob("samples-*.csv")).write_bytes(b"\xff\x00"), "is not a table of samples"),
        (lambda run: _cut(next(run.glob("samples-*.csv"))), "99 samples, but results.json reports 360"),
        (lambda run: next(run.glob("*.broken.safetensors")).write_text("x"), "truncated"),
        (lambda run: (run / "results.json").write_text("["), "not readable JSON"),
        (lambda run: (run / "env.json").write_text("[]"), "does not contain a JSON object"),
    ],
    ids=["columns", "bytes", "cut", "broken", "results", "environment"],
)
def test_spoiled_files_are_one_line(evaluated: Path, tmp_path: Path, spoil, word: str, capsys):
    folder = tmp_path / "run"
    shutil.copytree(evaluated, folder)
    (folder / "report.html").unlink(missing_ok=True)
    spoil(folder)
    assert main(["report", str(folder)]) == 2
    error = capsys.readouterr().err
    assert word in error
    assert error.count("\n") == 1
    assert not (folder / "report.html").exists()


def test_it_is_opened_on_demand(evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(asked.append(address)))
    file = tmp_path / "new" / "page.html"
    assert main(["report", str(evaluated), "--out", str(file), "--open"]) == 0
    assert asked == [file.as_uri()]
    assert file.is_file()
    assert "open the file yourself" in capsys.readouterr().out


def test_mistakes(tmp_path: Path, evaluated: Path, capsys: pytest.CaptureFixture[str]):
    for arguments, word in (
        ([], "run folder"),
        ([str(tmp_path / "absent")], "is not a folder"),
        ([str(tmp_path)], "is not a run or model folder"),
        ([str(evaluated), "--out", str(tmp_path)], "expected a file"),
    ):
        assert main(["report", *arguments]) == 2
        assert word in capsys.readouterr().err


def test_a_full_size_run_is_small_and_quick(evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Create 10,000 samples of noise, which no picture format can compress, and 1,300 epochs."""
    generator = torch.Generator().manual_seed(0)
    shape, count, eps = (3, 32, 32), 10_000, "8/255"
    labels = torch.randint(0, 10, (count,), generator=generator)
    noise = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    monkeypatch.setattr(
        "linfnet.report.run_summary.load", lambda name, split: ImageSet(noise, labels, set_info(name), split)
    )
    radii = torch.randn(count, generator=generator, dtype=torch.float64) * 0.05
    logits = torch.nn.functional.one_hot(labels, 10) * radii.sign().unsqueeze(1)
    broken = Broken(torch.arange(12), to_pixels(noise[:12], 255), labels[:12], radii[:12])
    certified = dict.fromkeys(("margin", "interval"), radii >= 8 / 255)
    at = AtEpsilon(parse_epsilon(eps), certified, radii >= 0.03, broken, 1.0, {"margin": 1, "interval": 1})
    evaluation = Evaluation(
        data="cifar10",
        split="test",
        limit=None,
        attack=AttackSettings(),
        arithmetic="float32",
        confidence=1.0,
        logits=logits,
        labels=labels,
        radii={"margin": radii.where(radii >= 0, -torch.inf)},
        real_radii=radii,
        at=(at,),
    )
    save_evaluation(evaluation, tmp_path)
    (tmp_path / "recipe.toml").write_text(recipe_to_toml(load_recipe("cifar10-8")))
    (tmp_path / "model.safetensors").touch()
    events = [json.loads(line) for line in (evaluated / "events.jsonl").read_text().splitlines()]
    epoch, test = (next(event for event in events if event["event"] == kind) for kind in ("epoch", "test"))
    log = [{**event, "epoch": k} for k in range(1, 1301) for event in (epoch, test)]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in log))
    start = time.perf_counter()
    page = render([read_run(tmp_path)])
    assert time.perf_counter() - start < 20
    assert "Broken at ε = 8/255" in page
    assert len(page.encode()) < 5_000_000


def test_a_net_with_one_certificate_and_no_radii(tmp_path: Path):
    folder = tmp_path / "hybrid"
    few = ["data.name=digits", "width=16", "depth=3", "epochs=[1, 1, 1]", "limit=200", "evaluation.eps=[0.1]", "pad=0"]
    assert main(["train", "mnist-0.3-hybrid", "--out", str(folder), "--set", *few]) == 0
    assert main(["evaluate", str(folder), "--eps", "0.01", "0.1", "--steps", "3"]) == 0
    run = read_run(folder)
    (line,) = certified_curve([run])["runs"]
    assert line["radii"] is None
    assert [list(m.certified) for m in run.main] == [["interval"], ["interval"]]
    assert [point["certified"] for point in line["measured"]] == [m.certified["interval"] for m in run.main]
    page = render([run])
    assert "The net has no margin certificate" in page
    assert run.main[0].guarantee in page
    assert "certified by interval" in page
    assert "certified by margin" not in page
    assert {group.id for group in gallery(run, levels=False)} <= {"broken"}
    # The system uses p, but neither mixing, temperature nor theta.
    assert [panel["title"] for panel in training_panels([run])] == ["Accuracy", "Loss", "Exponent p"]


def edited(run: Path, more: str) -> str:
    """Return the recipe of a run with more lines, without its digest, which is the first line."""
    return (run / "recipe.toml").read_text().partition("\n")[2] + more


def test_beside_another_system_only_what_each_run_has_is_drawn(evaluated: Path, tmp_path: Path):
    other = tmp_path / "other"
    shutil.copytree(evaluated, other)
    (other / "recipe.toml").write_text(edited(other, '[system]\nname = "hybrid"\n'))
    panels = {panel["title"]: panel for panel in training_panels([read_run(evaluated), read_run(other)])}
    for title, runs in (("Loss", 2), ("Exponent p", 2), ("Mixing λ", 1), ("Training margins above θ", 1)):
        assert len(panels[title]["series"]) == runs


def without_mixing(run: Path, folder: Path) -> Path:
    """Return the run as if it had been trained by an objective without mixing, as in 2021."""
    shutil.copytree(run, folder)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    lines = [json.dumps({**event, "lambda": 0.0} if event["event"] == "epoch" else event) for event in events]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_a_mixing_of_zero_has_no_panel(evaluated: Path, tmp_path: Path):
    panels = training_panels([read_run(without_mixing(evaluated, tmp_path / "run"))])
    titles = ["Accuracy", "Loss", "Training margins", "Exponent p", "Temperature s"]
    assert [panel["title"] for panel in panels] == titles


def test_a_conventional_net_has_no_p(evaluated: Path, tmp_path: Path):
    folder = tmp_path / "run"
    shutil.copytree(evaluated, folder)
    (folder / "recipe.toml").write_text(edited(folder, '[system]\nname = "smoothing"\n'))
    results = read_results(folder).evaluations
    add_evaluations(folder, tuple(replace(result, confidence=0.999, arithmetic="real") for result in results))
    run = read_run(folder)
    assert [panel["title"] for panel in training_panels([run])] == ["Accuracy", "Loss"]
    assert training_panels([run])[0]["phases"] is None
    assert "Certificates: holds with probability 0.999 per image" in render([run])


def test_a_caption_without_epsilon_is_a_sentence(evaluated: Path):
    run = replace(read_run(evaluated), recipe=None, main=())
    assert run.epsilon is None
    page = render([run])
    caption = re.search("<figcaption>(Half the margin.*?)</figcaption>", page, re.DOTALL)[1]
    assert re.findall(r"\s+\.|\.\s*\.", caption) == []
    assert "certified, up to rounding" not in caption
    assert "Images to the right of ε = 0.1 are certified, up to rounding." in render([read_run(evaluated)])


def test_the_page_says_what_certified_means(evaluated: Path, trained: Path):
    for runs in ([evaluated], [evaluated, trained]):
        assert "An image is certified at ε if it is classified correctly" in render([read_run(path) for path in runs])


def test_each_net_is_named_once_in_the_table_of_results(evaluated: Path, tmp_path: Path):
    folder = tmp_path / "run"
    shutil.copytree(evaluated, folder)
    other = replace(read_results(evaluated).evaluations[0], net="nearest-neighbour")
    add_evaluations(folder, (other,))
    heads = re.findall(r'<th scope="rowgroup" colspan="\d">(.*?)</th>', render([read_run(folder)]))
    assert heads[:2] == ["run", "nearest-neighbour net"]
    assert len(heads) == 3  # and the published figures


def test_templates_escape_what_runs_contain(evaluated: Path):
    """Values in every section are escaped, including values that only files edited by hand can contain."""
    run = read_run(evaluated)
    marked = "<b>marked</b>"
    run = replace(run, notes=(marked,), environment={"commit": marked, "command": marked, marked: marked})
    page = render([run, replace(run, name=marked)])
    assert marked not in page
    assert page.count("&lt;b&gt;marked&lt;/b&gt;") > 8


def test_the_report_shows_exact_accuracies(evaluated: Path, tmp_path: Path):
    folder = tmp_path / "exact"
    shutil.copytree(evaluated, folder)
    run = read_run(folder)
    document = json.loads((folder / "results.json").read_text())
    for entry in document["evaluations"]:
        entry["exact"] = {"robust": entry["attacked"], "undecided": 0.0}
    del document["digest"]
    (folder / "results.json").write_text(json.dumps(document))
    exact = read_run(folder)
    (line,) = certified_curve([exact])["runs"]
    assert [point["exact"] for point in line["measured"]] == [result.attacked for result in exact.main]
    assert "Exact: every image was decided" in render([exact])
    assert "Exact: every image was decided" not in render([run])
