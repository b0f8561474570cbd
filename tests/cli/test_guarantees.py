"""Every output that contains a radius or a certified accuracy says what it promises."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from linfnet.certificates import certify
from linfnet.cli.main import main
from linfnet.data import load
from linfnet.export import write_card
from linfnet.nn import Classifier, LinfNet
from linfnet.report.page import render
from linfnet.report.run_summary import read_run
from linfnet.systems.crown_ibp import CrownIbpNet
from linfnet.systems.smoothing import SmoothedNet


@pytest.fixture(scope="module", params=["linf", "smoothing", "crown-ibp"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Classifier]:
    torch.manual_seed(0)
    nets: dict[str, Classifier] = {
        "linf": LinfNet((1, 8, 8), 10, (16,)),
        "smoothing": SmoothedNet((1, 8, 8), 10, "small", 0.3, 20, 0.002, 2),
        "crown-ibp": CrownIbpNet((1, 8, 8), 10, "small", False),
    }
    folder, net = tmp_path_factory.mktemp("models") / request.param, nets[request.param]
    net.eval().save(folder)
    return folder, net


def test_what_it_promises(model: tuple[Path, Classifier], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder, net = model
    promise = {
        "linf": "proven in float32",
        "smoothing": "holds with probability 0.998 per image, rounding ignored",
        "crown-ibp": "proven in real arithmetic, rounding ignored",
    }[net.system]
    assert net.guarantee == promise
    image = load("digits", "test").pixels(slice(0, 1))[0]
    assert promise in repr(certify(net, image.unsqueeze(0)))
    np.save(tmp_path / "image.npy", image.numpy())

    def printed(*arguments: str) -> str:
        capsys.readouterr()
        assert main(list(arguments)) == 0
        return " ".join(capsys.readouterr().out.split())

    at = ("--data", "digits", "--eps", "0.01", "--limit", "4")
    predict = ("predict", str(folder), str(tmp_path / "image.npy"))
    assert promise in printed(*predict)
    assert [row["guarantee"] for row in json.loads(printed(*predict, "--json"))] == [promise]
    assert main([*predict, "--csv"]) == 0
    assert [row["guarantee"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == [promise]
    assert promise in printed("certify", str(folder), *at)
    assert promise in printed("attack", str(folder), *at, "--attacks", "pgd", "--steps", "1")
    assert promise in printed("evaluate", str(folder), *at, "--steps", "1")
    assert promise in printed("compare", str(folder))
    assert json.loads(printed("compare", str(folder), "--json"))[0]["guarantee"] == promise
    assert write_card(folder, net).read_text().count(promise) == 3
    from linfnet.serve.service import Service  # needs the extra serve, unlike the other tests

    service = Service(folder)
    assert {service.describe().guarantee, service.predict(image).guarantee} == {promise}
    assert service.attack(image, 1, lambda: False, eps=0.01).guarantee == promise
    page = render([read_run(folder)])
    assert f"Certificates: {promise}." in page
    assert (f"Certified radii: {promise}." in page) is ("margin" in net.certificate_names)
