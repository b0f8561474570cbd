"""Every public function is called with each kind of input: the right answer, or one clear line."""

import copy
import inspect
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import linfnet
from linfnet import ArgumentError, LinfNet, attacks, certificates
from linfnet.attacks import attack_all, best_pgd, closest_break, known_attacks, pgd, square_attack, strongest_within
from linfnet.certificates import certified_by_interval, certify_by_margin, certify_images, interval_radius
from linfnet.certificates.real import real_certified, real_margin_radius

EPS = Fraction(1, 20)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def all_certificates(net: Any, images: Any, labels: Any, eps: Any) -> object:
    found = certify_images(net, [(images, labels)], [eps], steps=4)
    return found.radii, found.certified, found.predictions


def certified(method: str | None) -> Callable[..., object]:
    def call(net: Any, images: Any, labels: Any, eps: Any) -> object:
        found = linfnet.certify(net, images, labels, method=method)
        return found.radius, found.prediction, found.at(eps)

    return call


def by_margin(net: Any, images: Any, labels: Any, eps: Any) -> object:
    found = certify_by_margin(net, images, labels)
    return found.radii, found.at(eps)


def decided(net: Any, images: Any, labels: Any, eps: Any) -> object:
    found = linfnet.certify(net, images, labels, method="exact", eps=eps)
    return found.robust, found.broken, found.prediction


def exact_radii(net: Any, images: Any, labels: Any, eps: Any) -> object:
    return linfnet.exact_radius(net, images, labels, width="1/64").radius


def attacked(method: Any) -> Callable[..., object]:
    def call(net: Any, images: Any, labels: Any, eps: Any) -> object:
        found = linfnet.attack(net, images, labels, eps, method, steps=2, restarts=1, exponents=(8.0,), queries=3)
        return found.images, found.success, found.prediction

    return call


def stripes(net: LinfNet, images: Tensor, labels: Tensor, eps: float) -> Tensor:
    """An attack of a user, with the rounding errors of float32."""
    return (images + eps * torch.where(torch.arange(images.shape[-1]) % 2 == 0, 1, -1)).clamp(0, 1)


def evaluated(net: Any, images: Any, labels: Any, eps: Any) -> object:
    found = linfnet.evaluate(net, (images, labels), eps, steps=2)
    return found.clean, found.attacked, found.certified


def fitted(net: Any, images: Any, labels: Any, eps: Any) -> object:
    settings = {"epochs": [1, 0, 1], "evaluation.eps": eps}
    found = linfnet.fit("digits", (images, labels), settings=settings, net=copy.deepcopy(net), device="cpu")
    return list(found.net.state_dict().values()), found.result.train


def compressed(net: Any, images: Any, labels: Any, eps: Any) -> object:
    found = linfnet.compress(net, (images, labels), eps=eps, passes=1, check=(images, labels))
    return list(found.net.state_dict().values()), found.identical, found.before, found.after


def closest(net: Any, images: Any, labels: Any, eps: Any) -> object:
    found = closest_break(net, images[0], labels[0], steps=2, points=2, rounds=1, exponents=(math.inf,))
    return found.distance, found.image


def strongest(net: Any, images: Any, labels: Any, eps: Any) -> object:
    found = strongest_within(net, images[0], labels[0], eps, steps=2, restarts=1)
    return found.image, found.margin, found.broken


def suite(net: Any, images: Any, labels: Any, eps: Any) -> object:
    (found,) = attack_all(net, images, labels, [eps], known_attacks(("pgd", "square"), steps=2, queries=2))
    return found.survived, found.images, found.prediction


# name: (call, arguments of the issue's list that it takes)
EVERYTHING = {"net", "images", "labels", "eps"}
FUNCTIONS: dict[str, tuple[Callable[..., object], set[str]]] = {
    "certify": (certified(None), EVERYTHING),
    "certify interval": (certified("interval"), EVERYTHING),
    "certify exact": (decided, EVERYTHING),
    "decide": (lambda net, x, y, eps: certificates.decide(net, x, y, eps).robust, EVERYTHING),
    "exact_radius": (exact_radii, EVERYTHING - {"eps"}),
    "attack": (attacked("pgd"), EVERYTHING),
    "attack smoothed": (attacked("smoothed"), EVERYTHING),
    "attack of a user": (attacked(stripes), EVERYTHING),
    "evaluate": (evaluated, EVERYTHING),
    "fit": (fitted, EVERYTHING),
    "compress": (compressed, EVERYTHING),
    "certify_images": (all_certificates, EVERYTHING),
    "certify_by_margin": (by_margin, EVERYTHING),
    "certified_by_interval": (certified_by_interval, EVERYTHING),
    "interval_radius": (lambda net, x, y, eps: interval_radius(net, x, y, steps=4), EVERYTHING - {"eps"}),
    "pgd": (lambda net, x, y, eps: pgd(net, x, y, eps, seeded(), steps=2), EVERYTHING),
    "best_pgd": (lambda net, x, y, eps: best_pgd(net, x, y, eps, seeded(), steps=2), EVERYTHING),
    "square_attack": (lambda net, x, y, eps: square_attack(net, x, y, eps, queries=3, generator=seeded()), EVERYTHING),
    "closest_break": (closest, EVERYTHING - {"eps"}),
    "strongest_within": (strongest, EVERYTHING),
    "attack_all": (suite, EVERYTHING),
    "certificates_of": (lambda net, x, y, eps: list(certificates.certificates_of(net)), {"net"}),
    "real_margin_radius": (lambda net, x, y, eps: real_margin_radius(net.logits, y, 2.5), {"labels"}),
    "real_certified": (lambda net, x, y, eps: real_certified(net.logits, y, 2.5, eps), {"labels", "eps"}),
    "forward": (lambda net, x, y, eps: net(x).detach(), {"images"}),
}


@pytest.fixture
def net() -> LinfNet:
    torch.manual_seed(0)
    net = LinfNet((1, 4, 4), 3, (12,), mean=0.3, std=0.4).eval()
    net.logits = net(samples()[0]).detach()
    return net


def samples() -> tuple[Tensor, Tensor]:
    images = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    images[:, 0, 0] = (images[:, 0, 0] * 255).round() / 255
    return images, torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


def with_nan(images: Tensor) -> Tensor:
    images[:, 0, 0, 0] = math.nan
    return images


# Each input: the argument, how it is changed, and what is expected: None for the answer of the reference call, a change
# of the reference, or words of the error.
Change = Callable[[Any], Any]
INPUTS: dict[str, tuple[str, Change, str | Change | None]] = {
    "eps text": ("eps", lambda eps: "1/20", None),
    "eps decimal text": ("eps", lambda eps: " 0.05 ", None),
    "eps float": ("eps", lambda eps: 0.05, None),
    "eps of NumPy": ("eps", lambda eps: np.float64(0.05), None),
    "eps ratio": ("eps", lambda eps: (1, 20), None),
    "eps int 0": ("eps", lambda eps: 0, lambda eps: Fraction(0)),
    "eps int 1": ("eps", lambda eps: 1, lambda eps: Fraction(1)),
    "eps int 8": ("eps", lambda eps: 8, r"eps is 8; expected a number from 0 to 1 .*; did you mean 8/255\?"),
    "eps text 8": ("eps", lambda eps: "8", r"did you mean 8/255\?"),
    "eps ratio above 1": ("eps", lambda eps: (9, 8), "eps is 9/8; expected a number from 0 to 1"),
    "eps negative": ("eps", lambda eps: -0.1, "eps is -0.1; expected a number from 0 to 1"),
    "eps NaN": ("eps", lambda eps: math.nan, "eps is 'nan'; expected a number like 8/255"),
    "eps None": ("eps", lambda eps: None, "eps is 'None'; expected a number like 8/255"),
    "eps words": ("eps", lambda eps: "8\n255", r"eps is '8 255'; expected a number like 8/255"),
    "images float64": ("images", lambda x: x.double(), r"dtype torch.float64.* pass images.float\(\)"),
    "images uint8": ("images", lambda x: (x * 255).byte(), r"dtype torch.uint8; .*images.float\(\) / 255"),
    "images int64": ("images", lambda x: (x * 255).long(), r"dtype .*int64"),
    "images 0 to 255": ("images", lambda x: x * 255, "divide by 255"),
    "images NaN": ("images", with_nan, "NaN"),
    "images below 0": ("images", lambda x: x - 0.5, "expected"),
    "images of NumPy": ("images", lambda x: x.numpy(), None),
    "images of NumPy, float64": ("images", lambda x: x.double().numpy(), r"pass images.float\(\)"),
    "images read-only": ("images", lambda x: np.frombuffer(x.numpy().tobytes(), np.float32).reshape(x.shape), None),
    "images with a gradient": ("images", lambda x: x.requires_grad_(), None),
    "images not contiguous": ("images", lambda x: x.transpose(2, 3).contiguous().transpose(2, 3), None),
    "images as lists": ("images", lambda x: x.tolist(), "expected a t"),
    "images of another shape": ("images", lambda x: x[:, :, :3], "shape"),
    "images sparse": ("images", lambda x: x.to_sparse(), r"images is a sparse tensor.*to_dense\(\)"),
    "images without values": ("images", lambda x: x.to("meta"), "images is on the device meta"),
    "images complex": ("images", lambda x: x + 0j, "dtype .*complex64"),
    "images None": ("images", lambda x: [None], "expected"),
    "one image": ("images", lambda x: x[0], "shape"),
    "labels out of range": ("labels", lambda y: y + 1, r"labels (contain|holds) 3; expected"),
    "labels negative": ("labels", lambda y: y - 1, r"labels (contain|holds) -1; expected"),
    "labels float": ("labels", lambda y: y.float(), "labels has dtype float32; expected integers"),
    "labels bool": ("labels", lambda y: y > 0, "labels has dtype bool; expected integers"),
    "labels one-hot": ("labels", lambda y: torch.eye(3)[y], r"labels has shape .*expected .*argmax\(1\)"),
    "labels too few": ("labels", lambda y: y[:3], "labels (has length|holds) 3"),
    "labels of NumPy": ("labels", lambda y: y.numpy(), None),
    "labels int32": ("labels", lambda y: y.int(), None),
    "labels as a list": ("labels", lambda y: y.tolist(), None),
    "labels as a column": ("labels", lambda y: y[:, None], None),
    "net in training mode": ("net", lambda net: net.train(), None),
    "net at p = 8": ("net", lambda net: setattr(net, "p", 8.0) or net, None),
    "net of another kind": ("net", lambda net: torch.nn.Sequential(net), "net is a Sequential, .*Classifier.wrap"),
    "net in DataParallel": ("net", torch.nn.DataParallel, r"net is a DataParallel, .* pass net.module"),
    "net compiled": ("net", lambda net: torch.compile(net, backend="eager"), "the net is compiled"),
    "net compiled in place": ("net", lambda net: net.compile(backend="eager") or net, "the net is compiled"),
    "name of a net": ("net", lambda net: "mnist-small", "net is a str, .*load_model"),
}
# Functions for which another outcome is right.
OTHERWISE: dict[tuple[str, str], str | Change | None] = {
    # A data set stores bytes, or float32; the accuracy is that of the stored images.
    ("evaluate", "images float64"): None,
    ("evaluate", "images of NumPy, float64"): None,
    ("evaluate", "images uint8"): lambda x: (x * 255).byte().float() / 255,
    ("evaluate", "images int64"): "convert integers from 0 to 255 to uint8",
    ("evaluate", "one image"): "expected one for each",
    ("compress", "images float64"): None,
    ("compress", "images of NumPy, float64"): None,
    ("compress", "images uint8"): lambda x: (x * 255).byte().float() / 255,
    ("compress", "images int64"): "convert integers from 0 to 255 to uint8",
    ("compress", "one image"): "expected one for each",
    ("compress", "eps None"): lambda eps: None,  # without perturbed images
    ("fit", "images float64"): None,
    ("fit", "images of NumPy, float64"): None,
    ("fit", "images uint8"): lambda x: (x * 255).byte(),
    ("fit", "images int64"): "convert integers from 0 to 255 to uint8",
    ("fit", "one image"): "expected one for each",
    ("fit", "net compiled in place"): None,  # a copy is trained, which is not compiled
    # One label and one image are passed.
    ("closest_break", "labels too few"): None,
    ("closest_break", "labels one-hot"): "labels has shape",
    ("closest_break", "labels out of range"): lambda y: y + 1,
    ("strongest_within", "labels too few"): None,
    ("strongest_within", "labels one-hot"): "labels has shape",
    ("strongest_within", "labels out of range"): lambda y: y + 1,
    # The values are not scanned in the forward pass.
    ("forward", "images 0 to 255"): lambda x: x * 255,
    ("forward", "images NaN"): with_nan,
    ("forward", "images below 0"): lambda x: x - 0.5,
    ("forward", "images of NumPy"): "expected a tensor",
    ("forward", "images of NumPy, float64"): "expected a tensor",
    ("forward", "images read-only"): "expected a tensor",
}


# torch itself reports these, or computes a tensor without values.
UNCHECKED = {("forward", "images sparse"), ("forward", "images without values")}


def cases() -> Iterator[Any]:
    for name, (_, takes) in FUNCTIONS.items():
        for words, (argument, *_) in INPUTS.items():
            if argument in takes and (name, words) not in UNCHECKED:
                yield pytest.param(name, words, id=f"{name}: {words}")


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one.nan_to_num(9.0), other.nan_to_num(9.0))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize(("name", "words"), [*cases()])
def test_the_right_answer_or_one_line(name: str, words: str, net: LinfNet):
    call, _ = FUNCTIONS[name]
    argument, change, expected = INPUTS[words]
    expected = OTHERWISE.get((name, words), expected)
    images, labels = samples()
    given: dict[str, Any] = {"net": net, "images": images, "labels": labels, "eps": EPS}
    reference = given | {key: each.clone() for key, each in given.items() if isinstance(each, Tensor)}
    if callable(expected):
        reference[argument] = expected(reference[argument])
    answer = None if isinstance(expected, str) else call(*reference.values())
    given[argument] = change(given[argument])
    p, training = net.p, net.training
    if isinstance(expected, str):
        with pytest.raises(ArgumentError, match=expected) as caught:
            call(*given.values())
        assert isinstance(caught.value, ValueError)
        assert "\n" not in str(caught.value)
    else:
        assert same(call(*given.values()), answer)
    assert (net.p, net.training, net.scale.dtype) == (p, training, torch.float32)


@pytest.mark.parametrize(
    "name", [name for name, (_, takes) in FUNCTIONS.items() if "images" in takes and name != "forward"]
)
def test_vectors_are_images_of_one_row(name: str):
    call, _ = FUNCTIONS[name]
    vectors, labels = torch.rand(8, 5, generator=seeded()), samples()[1]
    rows = vectors.view(8, 1, 1, 5)
    nets: list[LinfNet] = []
    for shape in ((5,), (1, 1, 5)):
        torch.manual_seed(0)
        nets.append(LinfNet(shape, 3, (12,), mean=0.3, std=0.4).eval())
    answers = [call(net, images, labels, EPS) for net in nets for images in (vectors, rows)]
    for answer, images in zip(answers, (vectors, rows) * 2, strict=True):
        for found in answer if isinstance(answer, tuple) else (answer,):
            if isinstance(found, Tensor) and found.is_floating_point() and found.dim() > 1:
                assert found.shape in (images.shape, images.shape[1:])
    flat = [flattened(answer) for answer in answers]
    assert all(same(flat[0], other) for other in flat)


def flattened(answer: Any) -> Any:
    """Return the answer with all tensors as one row."""
    if isinstance(answer, tuple | list):
        return [flattened(each) for each in answer]
    return answer.flatten() if isinstance(answer, Tensor) else answer


def test_no_public_function_is_left_out():
    """The functions of the front, of the attacks and of the certificates that take a net, images or labels."""
    # They take results of other functions, or are parts of attacks.
    exempt = {"smoothed_logits", "check_sandwich", "other_class"}
    for module in (linfnet, attacks, certificates):
        for name in dir(module):
            found = getattr(module, name)
            if inspect.isfunction(found) and not name.startswith("_"):
                taken = inspect.signature(found).parameters.keys() & {"net", "images", "labels", "logits", "eps"}
                assert not taken or name in FUNCTIONS.keys() | exempt, name


@pytest.mark.parametrize("name", ["pgd", "best_pgd", "square_attack", "attack", "evaluate", "interval_radius"])
@pytest.mark.parametrize("count", [-1, 0, 2.5, "many"])
def test_counts(name: str, count: Any, net: LinfNet):
    images, labels = samples()
    calls: dict[str, Callable[[], object]] = {
        "pgd": lambda: pgd(net, images, labels, EPS, steps=count),
        "best_pgd": lambda: best_pgd(net, images, labels, EPS, restarts=count),
        "square_attack": lambda: square_attack(net, images, labels, EPS, queries=count),
        "attack": lambda: linfnet.attack(net, images, labels, EPS, steps=count),
        "evaluate": lambda: linfnet.evaluate(net, (images, labels), EPS, steps=count),
        "interval_radius": lambda: interval_radius(net, images, labels, steps=count),
    }
    with pytest.raises(ArgumentError, match=f"is '?{count}'?; expected a .*number of at least 1"):
        calls[name]()


def test_a_net_instead_of_logits_is_left_as_it_is(net: LinfNet):
    with pytest.raises(ArgumentError, match=r"logits is a LinfNet; expected a tensor \[N, K\]: pass net\(images\)"):
        real_margin_radius(net, samples()[1], 2.5)  # pyright: ignore[reportArgumentType]
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())


class TestCertify:
    def test_without_labels_the_predicted_classes_are_certified(self, net: LinfNet):
        images, _ = samples()
        found = linfnet.certify(net, images)
        assert torch.equal(found.labels, found.prediction)
        assert torch.equal(found.prediction, net(images).argmax(1))
        assert found.radius.dtype == torch.float64
        assert (found.method, found.arithmetic, found.confidence) == ("margin", "float32", 1.0)
        assert torch.equal(found.at(0), found.radius >= 0)

    def test_batches_change_nothing(self, net: LinfNet, monkeypatch: pytest.MonkeyPatch):
        images, labels = torch.rand(20, 1, 4, 4), torch.arange(20) % 3
        whole, done = linfnet.certify(net, images, labels), list[int]()
        monkeypatch.setattr("linfnet.certificates.certified.BATCH", 6)
        parts = linfnet.certify(net, images, labels, advance=done.append)
        assert torch.equal(whole.radius, parts.radius)
        assert done == [6, 6, 6, 2]

    def test_no_images(self, net: LinfNet):
        found = linfnet.certify(net, torch.zeros(0, 1, 4, 4))
        assert found.radius.shape == found.prediction.shape == (0,)

    def test_an_unknown_method(self, net: LinfNet):
        with pytest.raises(ArgumentError, match="expected one of margin, interval, exact; did you mean 'interval'"):
            linfnet.certify(net, samples()[0], method="intervals")


def test_radii_above_1_are_accepted_where_radii_are_expected():
    """The margin certificate ignores the pixel range, so its radii may be larger than any change of a pixel."""
    net = LinfNet((1, 1, 1), 2, (), identity_init=False).eval()
    net.layers[0].weight.data.copy_(torch.tensor([[0.0], [9.0]]))
    image = torch.full((1, 1, 1, 1), 0.25)
    found = linfnet.certify(net, image)
    assert found.radius.item() > 4
    assert found.at(1).all()
    closest = closest_break(net, image[0], 0, radius=found.radius.item(), steps=1, points=2)
    assert closest.complete
    assert closest.image is None


class TestAttack:
    def test_no_certified_image_is_broken_and_wrong_ones_count_as_success(self, net: LinfNet):
        images, labels = torch.rand(60, 1, 4, 4), torch.arange(60) % 3
        proof = linfnet.certify(net, images, labels, method="interval")
        for method in ("pgd", "best-pgd", "smoothed", "square", stripes):
            found = linfnet.attack(net, images, labels, "0.1", method, steps=5, queries=20)
            assert not (found.success & proof.at("0.1")).any()
            assert torch.equal(found.success, net(found.images).argmax(1) != labels)
            assert torch.equal(found.prediction, net(found.images).argmax(1))
            wrong = net(images).argmax(1) != labels
            assert torch.equal(found.images[wrong], images[wrong])
            assert (found.images.double() - images.double()).abs().max() <= 0.1
            assert 0 < found.robust < 1

    def test_evaluate_runs_the_same_attack(self, net: LinfNet, monkeypatch: pytest.MonkeyPatch):
        for module in ("attacks.single", "evaluation.evaluator"):
            monkeypatch.setattr(f"linfnet.{module}.BATCH", 25)
        images, labels = torch.rand(60, 1, 4, 4), torch.arange(60) % 3
        for method in ("pgd", "best-pgd", stripes):
            found = linfnet.attack(net, images, labels, 0.1, method, steps=3, seed=5)
            whole = linfnet.evaluate(net, (images, labels), 0.1, attack=method, steps=3, seed=5)
            assert torch.equal(whole.at[0].survived, ~found.success)
        name = whole.attack.name
        assert (name, whole.attack.steps, str(whole.attack)) == ("stripes", 0, "stripes")

    def test_a_user_sees_the_certified_net_or_the_asked_one(self, net: LinfNet):
        seen = list[tuple[float, bool]]()

        def look(net: LinfNet, images: Tensor, labels: Tensor, eps: float) -> Tensor:
            seen.append((net.p, net.training))
            assert isinstance(eps, float)
            return images

        net.train()
        net.p = 8.0
        images = samples()[0]
        with net.at_infinity():
            labels = net(images).argmax(1)
        linfnet.attack(net, images, labels, EPS, look)
        linfnet.attack(net, images, labels, EPS, look, p=4)
        assert seen == [(math.inf, False), (4.0, False)]
        assert (net.p, net.training) == (8.0, True)
        relaxed = linfnet.attack(net, images, labels, EPS, p=4, steps=3)
        assert not torch.equal(relaxed.images, linfnet.attack(net, images, labels, EPS, steps=3).images)
        with pytest.raises(ArgumentError, match="p is 4, method 'square'; expected method 'pgd' or a function"):
            linfnet.attack(net, images, labels, EPS, "square", p=4)

    @pytest.mark.parametrize(
        ("result", "words"),
        [
            (lambda images: images + 0.051, r"attack 'lambda' left the ball of eps = 0\.05"),
            (lambda images: images * math.nan, r"left the ball"),
            (lambda images: images[:, :, :2], r"returned shape .* expected images of shape"),
            (lambda images: (images, images), r"returned a tuple; expected images"),
        ],
    )
    def test_results_of_a_user_that_prove_nothing(self, result: Change, words: str, net: LinfNet):
        images = samples()[0] / 2
        with pytest.raises(ArgumentError, match=words):
            linfnet.attack(net, images, net(images).argmax(1), EPS, lambda net, x, y, eps: result(x))

    def test_an_unknown_attack(self, net: LinfNet):
        with pytest.raises(ArgumentError, match=r"attack is 'pdg'; expected one of .*; did you mean 'pgd'"):
            linfnet.attack(net, *samples(), EPS, "pdg")
        with pytest.raises(ArgumentError, match="the attack is a int; expected a function or one of autoattack"):
            linfnet.attack(net, *samples(), EPS, 3)  # pyright: ignore[reportArgumentType]


class TestEvaluate:
    def test_any_data_gives_the_same_result(self, net: LinfNet):
        images, labels = samples()
        expected = evaluated(net, images, labels, EPS)
        dataset = TensorDataset(images, labels)
        for data in (dataset, DataLoader(dataset, batch_size=3), [*zip(images, labels, strict=True)]):
            found = linfnet.evaluate(net, data, EPS, steps=2)
            assert (found.clean, found.attacked, found.certified) == expected
        assert found.certified <= found.attacked <= found.clean
        assert found.result == found.results[0]

    def test_several_epsilons(self, net: LinfNet):
        found = linfnet.evaluate(net, samples(), ["1/20", 0.1], steps=1)
        assert [result.eps for result in found.results] == [EPS, Fraction(1, 10)]
        with pytest.raises(ArgumentError, match=r"the evaluation has 2 epsilons; expected one: use \.results"):
            _ = found.attacked

    def test_without_an_attack(self, net: LinfNet):
        found = linfnet.evaluate(net, samples(), EPS, attack=None)
        assert found.attacked == found.clean
        assert str(found.attack) == "none"

    def test_data_of_another_shape_or_other_classes(self, net: LinfNet):
        with pytest.raises(ArgumentError, match=r"data has images of shape \(1, 5, 5\); the net expects \(1, 4, 4\)"):
            linfnet.evaluate(net, (torch.rand(4, 1, 5, 5), [0, 1, 2, 0]), EPS)
        with pytest.raises(ArgumentError, match=r"data has 10 classes .*; expected 3"):
            linfnet.evaluate(net, linfnet.load("digits", "test"), EPS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_data_is_moved_to_the_net_and_results_back(net: LinfNet):
    images, labels = samples()
    reference = linfnet.certify(net, images, labels), linfnet.attack(net, images, labels, EPS, stripes_anywhere)
    on_cpu = linfnet.evaluate(net, (images, labels), EPS, attack=stripes_anywhere)
    net.cuda()
    proof = linfnet.certify(net, images, labels.cuda())
    found = linfnet.attack(net, images, labels.cuda(), EPS, stripes_anywhere)
    assert torch.equal(proof.radius, reference[0].radius)
    assert torch.equal(found.images, reference[1].images)
    assert torch.equal(found.success, reference[1].success)
    on_gpu = linfnet.evaluate(net, (images, labels), EPS, attack=stripes_anywhere)
    assert (on_gpu.clean, on_gpu.attacked, on_gpu.certified) == (on_cpu.clean, on_cpu.attacked, on_cpu.certified)


def stripes_anywhere(net: LinfNet, images: Tensor, labels: Tensor, eps: float) -> Tensor:
    return stripes(net, images.cpu(), labels, eps)
