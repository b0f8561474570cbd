"""What every command asks of a net, whatever it is made of: images in, logits out, a folder on disk, a proof."""

import contextlib
import math
from collections.abc import Generator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

import torch
from torch import Tensor, nn

from linfnet.boxes import check_images, outer_box
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_json, read_tensors, write_json, write_tensors, write_text
from linfnet.nn.distance import DistanceModule
from linfnet.nn.model_card import model_card
from linfnet.nn.model_path import find_model
from linfnet.nn.normalize import Normalize

FORMAT = "linfnet-model-1"


class Classifier(nn.Module):
    """Images [B, C, H, W] in [0, 1] go in, logits [B, classes] come out; normalisation is inside.

    A subclass defines `forward`, `least_margin` (or `certified` itself) and `settings`: the arguments its constructor
    takes besides the first four of this one.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of logits.
        mean: mean of each channel in pixel units; one number serves all channels.
        std: the one standard deviation; mean 0 and std 1 leave the pixels as they are.
        learn_scale: the temperature of the cross-entropy is trained with the net; else it is 1.
    """

    system: ClassVar[str]
    """The name of the system the net belongs to, as config.json has it."""
    certificate: ClassVar[str]
    """What its proofs are called in results and tables."""
    arithmetic: ClassVar[Literal["float32", "real"]] = "real"
    """What the proofs speak of: the floating-point program itself, or the function it stands for."""
    cheap: ClassVar[bool] = True
    """Whether proofs cost about as much as predictions, so that training may watch them."""
    scale: Tensor

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        *,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
        learn_scale: bool = False,
    ) -> None:
        super().__init__()
        if len(image_shape) != 3 or min(image_shape) < 1:
            raise ArgumentError(f"image_shape is {tuple(image_shape)}; wanted three positive sizes (C, H, W)")
        if classes < 2:
            raise ArgumentError(f"classes is {classes}; wanted 2 classes or more")
        self.image_shape: tuple[int, int, int] = (image_shape[0], image_shape[1], image_shape[2])
        self.classes = classes
        self.std = float(std)
        self.mean = (float(mean),) * image_shape[0] if isinstance(mean, int | float) else tuple(map(float, mean))
        if len(self.mean) not in (1, image_shape[0]):
            raise ArgumentError(f"mean has {len(self.mean)} numbers; wanted one or {image_shape[0]}")
        self.normalize = Normalize(self.mean, std)
        # The temperature s of the cross-entropy: without influence on predictions.
        if learn_scale:
            self.scale = nn.Parameter(torch.ones(()))
        else:
            self.register_buffer("scale", torch.ones(()), persistent=False)

    @torch.no_grad()
    def certified(self, images: Tensor, labels: Tensor, epsilon: Fraction | Tensor) -> Tensor:
        """Which samples [N] are proven at epsilon, perturbed images staying in [0, 1]; at 0, which are right.

        Args:
            images: [N, C, H, W] in [0, 1].
            labels: [N].
            epsilon: exact, in pixel units; a float64 tensor [N] gives each image its own.
        """
        lower, upper = outer_box(check_images(images), epsilon)
        with self.at_infinity():
            # Bounds are rounded, too: what is wrong is never certified, and what is right always is at 0.
            return self.keeps_class(images, labels) & (
                (self.least_margin(lower, upper, labels) > 0) | torch.as_tensor(epsilon == 0)
            )

    def least_margin(self, lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
        """A lower bound [N] on the margin of the labels over the box lower <= image <= upper, in real arithmetic."""
        raise NotImplementedError

    @torch.no_grad()
    def keeps_class(self, images: Tensor, labels: Tensor) -> Tensor:
        """Which labels [N] are strictly on top: how attacks are judged."""
        logits, column = self(images), labels.unsqueeze(1)
        return logits.gather(1, column).squeeze(1) > logits.scatter(1, column, -torch.inf).amax(1)

    def certified_radius(self, images: Tensor, labels: Tensor) -> Tensor | None:
        """float64 [N]: proven radii in closed form, -inf where wrong; None lets them be found by bisection."""
        return None

    @property
    def confidence(self) -> float:
        """The probability that a certificate is right: 1 but for those that count over random samples."""
        return 1.0

    @property
    def lipschitz(self) -> float | None:
        """The Lipschitz constant in l_inf from pixels to logits, where one is known by construction; otherwise None."""
        return None

    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor that are the subclass's own."""
        return {}

    @property
    def p(self) -> float:
        """The exponent of all distance layers, infinity where there are none; setting it sets the relaxation."""
        return next((layer.p for layer in self._distances()), math.inf)

    @p.setter
    def p(self, value: float) -> None:
        for layer in self._distances():
            layer.p = value

    def _distances(self) -> Generator[DistanceModule]:
        return (module for module in self.modules() if isinstance(module, DistanceModule))

    @contextlib.contextmanager
    def at_infinity(self) -> Generator[Self]:
        """Evaluate at p = inf, in eval mode; afterwards p and the training flags are what they were."""
        # Only what must change is touched: setting an attribute of a module costs as much as a small layer.
        modules = list(self.modules())
        relaxed = [(m, m.p) for m in modules if isinstance(m, DistanceModule) and not math.isinf(m.p)]
        in_training = [module for module in modules if module.training]
        for layer, _ in relaxed:
            layer.p = math.inf
        for module in in_training:
            module.training = False
        try:
            yield self
        finally:
            for layer, p in relaxed:
                layer.p = p
            for module in in_training:
                module.training = True

    def check_shape(self, images: Tensor) -> Tensor:
        """The images, or an error if they are of another shape than the net's."""
        if tuple(images.shape[1:]) != self.image_shape:
            shape = " x ".join(map(str, self.image_shape))
            raise ArgumentError(f"images have shape {tuple(images.shape)}; the net wants [B, {shape}]")
        return images

    def config(self) -> dict[str, Any]:
        """What `from_config` needs to build the same net (without its weights)."""
        return {
            "format": FORMAT,
            "system": self.system,
            "image_shape": list(self.image_shape),
            "classes": self.classes,
            "mean": list(self.mean),
            "std": self.std,
            **self.settings(),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """A net with fresh weights from the dictionary that `config` gives."""
        if config.get("format") != FORMAT:
            raise LinfnetError(f"the config's format is {config.get('format')!r}; wanted {FORMAT!r}")
        if config.get("system", "linf") != cls.system:
            raise LinfnetError(f"the config is of a net of system {config.get('system')!r}; wanted {cls.system!r}")
        arguments = {key: value for key, value in config.items() if key not in ("format", "system", "class_names")}
        try:
            net = cls(**arguments)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise LinfnetError(f"the config does not describe a net: {str(error).splitlines()[0]}") from None
        # A default in the place of a lost std would be another net; p or the like is no part of what is saved.
        for name in sorted(net.config().keys() - {"system"} - config.keys()):
            raise LinfnetError(f"the config does not describe a net: it lacks {name!r}")
        for name in sorted(arguments.keys() - net.config().keys()):
            raise LinfnetError(f"the config does not describe a net: it has {name!r}, which is not saved with a net")
        return net

    def describe(self) -> str:
        """One or two sentences for the model card: what the net is and what its proofs are."""
        return f"A net of system `{self.system}`. Its certificates ({self.certificate}) hold in real arithmetic."

    def save(
        self, folder: Path | str, *, class_names: Sequence[str] = (), results: Mapping[str, Any] | None = None
    ) -> None:
        """Write `model.safetensors`, `config.json` and the model card `README.md`, with the results, into a folder.

        Nets are kept in float32, the precision that `load` gives and that certificates speak of.
        """
        for name, tensor in self.state_dict().items():
            if tensor.is_floating_point() and tensor.dtype != torch.float32:
                raise ArgumentError(f"{name!r} of the net holds {tensor.dtype}; wanted torch.float32: save net.float()")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {**self.config(), "class_names": list(class_names)}
        write_tensors(folder / "model.safetensors", self.state_dict(), {"format": "pt", "linfnet": FORMAT})
        write_json(folder / "config.json", config)
        write_text(folder / "README.md", model_card(config, self.describe(), count_parameters(self), results))

    @classmethod
    def load(cls, folder: Path | str, *, device: torch.device | str = "cpu") -> Self:
        """The net that `save` wrote, in eval mode at p = inf; an error says what is missing or does not fit.

        `hf://user/name` is a model on the Hugging Face hub (needs the extra `hub`).
        """
        folder = find_model(folder)
        net = cls.from_config(read_config(folder))
        load_weights(net, read_tensors(folder / "model.safetensors")[0], folder / "model.safetensors")
        return net.to(device).eval()


def count_parameters(net: nn.Module) -> int:
    """How many numbers a net learns.

    >>> count_parameters(nn.Linear(2, 3))
    9
    """
    return sum(parameter.numel() for parameter in net.parameters())


def read_config(folder: Path) -> dict[str, Any]:
    """The table of settings in a model folder's config.json."""
    config: Any = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise LinfnetError(f"{folder / 'config.json'} holds no table of settings")
    return cast(dict[str, Any], config)


def load_weights(net: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Copy named tensors into a net; an error names the first that is missing, foreign or of another shape."""
    wanted = net.state_dict()
    for name in sorted(wanted.keys() - tensors.keys()):
        raise LinfnetError(f"{source} lacks {name!r}: it belongs to another net")
    for name in sorted(tensors.keys() - wanted.keys()):
        raise LinfnetError(f"{source} holds {name!r}, which the net does not have: it belongs to another net")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            got, want = tuple(tensor.shape), tuple(wanted[name].shape)
            raise LinfnetError(f"{source}: {name!r} has shape {got}, the net wants {want} (other images or width?)")
        if tensor.dtype != wanted[name].dtype:
            raise LinfnetError(f"{source}: {name!r} holds {tensor.dtype}, the net wants {wanted[name].dtype}")
        if not bool(tensor.isfinite().all()):
            raise LinfnetError(f"{source}: {name!r} holds NaN or infinity")
    net.load_state_dict(tensors)
