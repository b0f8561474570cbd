"""Each mistake causes one clear line on standard error and exit code 2, and changes nothing on disk."""

from collections.abc import Callable
from pathlib import Path

import pytest

from linfnet.train import RunFolder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "digitz"], "unknown recipe 'digitz'; did you mean 'digits'?"),
        (["train", "digits", "--set", "widht=3"], "unknown key 'widht'; did you mean 'model.width'?"),
        (["train", "digits", "--set", "p_start=0.5"], "schedule.p_start is 0.5; expected a number >= 1"),
        (["train", "digits", "--set", "data.name=mnits"], "did you mean 'mnist'?"),
        (["train", "digits", "--out", "run"], "output folder run already contains a run"),
        (["train", "digits", "--out", "run/config.json/x"], "output folder run/config.json/x cannot be"),
        (["train", "digits", "--out", "run/config.json"], "output folder run/config.json cannot be used"),
        (["certify", "run", "--width", "0"], "--width is 0; expected a number from 2^-20 to 1"),
        (["train", "digits", "--resize", "28"], "convert image files only; give their path by --data"),
        (["search", "digits", "--vary", "lr=0.1", "--hold-out", "0"], "--hold-out is 0; expected a number from 1 to"),
        (["evaluate", "mnist-smal"], "; did you mean 'mnist-small'?"),
        (["report", "mnist-small"], "linfnet evaluate mnist-small --out DIR writes a folder for linfnet report"),
        (["train", "digits", "--set", "width=100000000000"], "model.width is too large"),
        (["train", "digits", "--set", "width=" + "9" * 5000], "model.width is"),
        (["train", "digits", "--set", "width=900000", "depth=900"], "the net cannot be built"),
        (["train", "digits", "--set", "seed=18446744073709551616"], "run.seed is too large"),
        (["train", "digits", "--set", "seed=-1"], "run.seed is -1"),
        (["train", "digits", "--set", "pad=100000000000000000000000"], "data.pad is too large"),
        (["train", "digits", "--set", "lr=" + "1" * 400], "optimizer.lr is too large"),
        (["train", "digits", "--set", "pad=1001"], "data.pad is 1001; expected a number of at most 1000"),
        (["train", "digits", "--set", "theta=1e400"], "loss.theta is 'inf'"),
        (["train", "digits", "--set", "theta="], "loss.theta is ''"),
        (["train", "digits", "--set", "epochs=" + "[" * 3000], "schedule.epochs"),
        (
            ["train", "digits", "--set", "lr_drops=[0.9, 0.5]"],
            "schedule.lr_drops is [0.9, 0.5]; expected rising",
        ),
        (
            ["train", "digits", "--set", "lr_drops=[0.5]", "hold_lr=true"],
            "schedule.hold_lr is true, but it has no effect",
        ),
        (["train", "digits", "--set", "lr_drop=0"], "schedule.lr_drop is 0.0; expected a number above 0, at most 1"),
        (
            ["train", "mnist-0.3-hybrid", "--set", "theta=0.5"],
            "loss.theta is 1/2, but it has no effect for system 'hybrid'",
        ),
        (["train", "mnist-0.3-hybrid", "--set", "loss.name=hinge"], "but it has no effect for system 'hybrid'"),
        (["train", "mnist-0.3-ibp", "--set", "width=64"], "model.width is 64, but it has no effect for system 'ibp'"),
        (
            ["train", "mnist-0.3-ibp", "--set", "p_end=99"],
            "schedule.p_end is 99.0, but it has no effect for system 'ibp'",
        ),
        (
            [
                "train",
                "cifar10-smoothing",
                "--set",
                "data.name=digits",
                "system.architecture=small",
                "limit=33",
                "batch=32",
            ],
            "optimizer.batch is 32: it leaves a last batch of 1 images, too few for batch norm",
        ),
        (["train", "digits", "--device", "meta"], "--device is 'meta'"),
        (["train", "digits", "--device", "cuda:77"], "torch cannot use this GPU"),
        (["trian"], "there is no command 'trian'; did you mean 'train'?"),
        (["--verison"], "there is no option '--verison'; did you mean '--version'?"),
        (["train", "--foo"], "linfnet train has no option --foo"),
        (["train", "--otu", "x"], "linfnet train has no option --otu; did you mean '--out'?"),
        (["train", "--epochs", "3"], "set it in the recipe: --set 'schedule.epochs=[100, 1150, 50]'"),
        (["train", "digits", "--out"], "--out needs a value"),
        (["--import"], "--import needs a module"),
        (["--import", "math"], "--import needs a command"),
        (["--import", "absent_module", "recipes"], "absent_module"),
        (["recipes", "--import=absent.py"], "absent.py"),
        (["evaluate"], "linfnet evaluate needs MODEL; see linfnet evaluate --help"),
        (["evaluate", "run", "--split", "foo"], "--split is 'foo'; expected one of test, train, val, all, held-out"),
        (["evaluate", "run", "--limit", "many"], "--limit is 'many'; expected a whole number"),
        (["watch", "run", "--every=soon"], "--every is 'soon'; expected a number"),
        (["data"], "linfnet data needs an action; expected one of fetch, list, verify"),
        (["data", "ftech"], "did you mean 'fetch'?"),
        (["data", "fetch", "--agian"], "linfnet data fetch has no option --agian; did you mean '--again'?"),
        (["evaluate", "run", "--eps", "1e-999999999"], "--eps is '1e-999999999'"),
        (["train", "digits", "--device", "tpu9"], "device is 'tpu9'"),
        (["train", "mnist-0.1"], "linfnet data fetch mnist"),
        (["train", "--resume", "run"], "has finished"),
        (["train", "--resume", "cache"], "is not a run folder"),
        (["train", "--resume", "stopped", "--set", "width=3"], "--set are not allowed with it"),
        (["evaluate", "run", "--eps", "8/0"], "--eps is '8/0'"),
        (["evaluate", "run", "--eps", "abc"], "--eps is 'abc'"),
        (["evaluate", "run", "--eps", "-1"], "--eps is -1"),
        (["evaluate", "run", "--eps", "0.1", "--eps", "2"], "--eps is 2"),
        (["evaluate", "run", "--limit", "0"], "--limit is 0"),
        (["evaluate", "run", "--steps", "0"], "--steps is 0"),
        (["evaluate", "absent"], "absent is not a folder"),
        (["attack", "run", "--seed", "9" * 30], "--seed is too large"),
        (["lipschitz", "run", "--seed", "-1"], "--seed is -1; expected a number of at least 0"),
        (["export", "mnist-small", "--card"], "--card writes into the model's folder; mnist-small is a packaged"),
        (["evaluate", "cache"], "cache is not a model: it has no config.json"),
        (["evaluate", "stopped"], "has not finished"),
        (["evaluate", "run", "--data", "cifar10"], "linfnet data fetch cifar10"),
        (["search", "digits"], "there are no variants; expected at least one: --vary, --variant or --variants"),
        (["search", "digits", "--vary", "clip_leek=0,1"], "unknown key 'clip_leek'; did you mean 'loss.clip_leak'?"),
        (["search", "digits", "--vary", "lr=0.1", "--set", "widht=3"], "unknown key 'widht'"),
        (["search", "digits", "--vary", "lr=0.1", "--seeds", "a"], "--seeds is 'a'; expected whole numbers"),
        (["search", "digits", "--vary", "lr=0.1", "--jobs", "0"], "--jobs is 0"),
        (["search", "digits", "--variants", "none.toml"], "none.toml cannot be read"),
        (["reproduce", "table2"], "the study is 'table2'; expected one of table1"),
        (["reproduce", "table1", "--row", "cifar"], "--row is 'cifar'; table1 has mnist-0.1, "),
        (["reproduce", "table1", "--row"], "--row is empty; table1 has mnist-0.1, "),
        (["reproduce", "table1", "--scale", "0"], "--scale is 0; expected a number above 0, at most 1"),
        (["reproduce", "table1", "--seeds", "0"], "--seeds is 0"),
        (["reproduce", "table1", "--set", "widht=3"], "unknown key 'widht'"),
        (["reproduce", "table1", "--row", "mnist-0.1"], "linfnet data fetch mnist"),
        (["certify", "absent"], "absent is not a folder"),
        (["certify", "stopped"], "has not finished"),
        (["certify", "cache"], "cache is not a model: it has no config.json"),
        (["evaluate", "."], "it contains the models run: give one of them"),
        (["serve", "nope"], "nope is not a folder; expected a run, "),
        (["evaluate", "run", "--resize", "big"], "--resize is 'big'; expected HxW such as 28x28"),
        (["certify", "run", "--grey", "--rgb"], "--grey and --rgb are both given"),
        (["evaluate", "run", "--resize", "8x8"], "convert image files only; digits is a known data set"),
        (["certify", "run", "--eps", "x"], "--eps is 'x'"),
        *(
            (["certify", "run", f"--eps={e}"], "--eps is")
            for e in ("-1", "nan", "inf", "1e400", "8/0", "８/255", "1/0.5")
        ),
        (["certify", "run", "--data", "cache"], "folder cache contains no images"),
        (["certify", "run", "--data", "digitz"], "did you mean 'digits'?"),
        (["certify", "run", "--limit", "0"], "--limit is 0"),
        (["certify", "run", "--data", "run/config.json"], "config.json: is not an image in a supported format"),
        (["attack", "run", "--attacks", "magic"], "attack is 'magic'; expected one of "),
        (["attack", "run", "--attacks"], "--attacks is empty; expected at least one"),
        (["attack", "run", "--p", "0"], "--p is"),
        (["attack", "run", "--steps", "0"], "--steps is 0; expected a number of at least 1"),
        (["attack", "run", "--eps", "2"], "--eps is 2"),
        (["attack", "cache"], "cache is not a model"),
        (["export", "run"], "nothing to export"),
        (["export", "run", "--onnx", "cache"], "--onnx is cache, a folder"),
        (
            ["export", "run", "--vnnlib", "new", "--samples", "99999"],
            "--samples has 99999; expected indices of digits test, 0 to 359",
        ),
        (["export", "run", "--vnnlib", "run/config.json", "--eps", "0.1"], "cannot be written"),
        (["export", "absent", "--onnx", "x.onnx"], "absent is not a folder"),
        (["predict", "run", "absent.png"], "absent.png: does not exist"),
        (["predict", "run"], "no image is given"),
        (["evaluate", "mnist-small"], "linfnet data fetch mnist"),
        *(
            ([*command, "mnist-small"], "use it with linfnet evaluate, certify, attack, predict, export and serve")
            for command in (
                ["report"],
                ["compare"],
                ["lipschitz"],
                ["plot"],
            )
        ),
        (["plot", "absent.json"], "absent.json is neither a run folder nor a record"),
        (["predict", "run/checkpoints", "absent.png"], "is not a model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(arguments: list[str], message: str, refused: Callable[..., str]):
    assert message in refused(*arguments)


def test_a_run_is_held_before_it_is_looked_at(place: Path, refused: Callable[..., str]):
    (place / "run" / ".results.json.x.tmp").write_text("an evaluation under way")
    other = RunFolder.open(place / "run")
    other.lock()
    assert "run is in use by another process" in refused("train", "--resume", "run")
    other.release()
    assert "run has finished" in refused("train", "--resume", "run")
    assert not other.locked


def test_what_torchrun_may_not_start(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "a study runs in one process" in refused("reproduce", "table1")
    assert "start it without torchrun" in refused("search", "digits", "--vary", "lr=0.1")
    assert "--out is required under torchrun" in refused("train", "digits")
