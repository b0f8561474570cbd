"""The l-infinity distance net: images in [0, 1] go in, logits come out, and one number bounds their change."""

import contextlib
import math
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_json, read_tensors, write_json, write_tensors, write_text
from linfnet.nn.card import model_card
from linfnet.nn.distance import DistanceModule, LpDistance
from linfnet.nn.hub import find_model
from linfnet.nn.normalize import Normalize

FORMAT = "linfnet-model-1"


class LinfNet(nn.Module):
    """A stack of distance layers on normalised pixels.

    At p = inf and in eval mode it is `lipschitz`-Lipschitz in the l_inf norm of the pixels, whatever its weights.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of logits.
        hidden: width of each hidden layer; () for a single layer.
        mean: mean of each channel in pixel units; one number serves all channels.
        std: the one standard deviation; mean 0 and std 1 leave the pixels as they are.
        mean_shift: subtract the means of the hidden layers.
        hidden_bias: give hidden layers a bias (the last layer always has one).
        negate_logits: the class whose prototype is *nearest* wins. The paper's text takes the distances themselves, its
            trained nets the negated ones; the nets of its theorems are written for the former.
        identity_init: start every layer that does not shrink as a copy of its input.
        p: exponent of all layers at first.

    >>> net = LinfNet((1, 8, 8), 10, hidden=(32, 32), mean=0.3, std=0.4)
    >>> net(torch.rand(5, 1, 8, 8)).shape, net.lipschitz
    (torch.Size([5, 10]), 2.5)
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        hidden: Sequence[int] = (),
        *,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
        mean_shift: bool = True,
        hidden_bias: bool = False,
        negate_logits: bool = True,
        identity_init: bool = True,
        p: float = math.inf,
    ) -> None:
        super().__init__()
        if len(image_shape) != 3 or min(image_shape) < 1:
            raise ArgumentError(f"image_shape is {tuple(image_shape)}; wanted three positive sizes (C, H, W)")
        if classes < 2 or any(width < 1 for width in hidden):
            raise ArgumentError(
                f"classes is {classes}, hidden {tuple(hidden)}; wanted 2 classes or more, widths above 0"
            )
        self.image_shape: tuple[int, int, int] = (image_shape[0], image_shape[1], image_shape[2])
        self.classes = classes
        self.hidden = tuple(hidden)
        self.negate_logits = negate_logits
        self.std = float(std)
        self.mean = (float(mean),) * image_shape[0] if isinstance(mean, int | float) else tuple(map(float, mean))
        if len(self.mean) not in (1, image_shape[0]):
            raise ArgumentError(f"mean has {len(self.mean)} numbers; wanted one or {image_shape[0]}")
        self.mean_shift, self.hidden_bias = mean_shift, hidden_bias
        self.normalize = Normalize(self.mean, std)
        sizes = [math.prod(image_shape), *hidden, classes]
        last = len(sizes) - 2
        self.layers = nn.Sequential(
            *(
                LpDistance(
                    sizes[i],
                    sizes[i + 1],
                    p=p,
                    bias=hidden_bias or i == last,
                    mean_shift=mean_shift and i < last,
                    identity_init=identity_init,
                )
                for i in range(last + 1)
            )
        )
        # The temperature s of the cross-entropy: trained with the net, without influence on its predictions.
        self.scale = nn.Parameter(torch.ones(()))

    @property
    def lipschitz(self) -> float:
        """The Lipschitz constant in l_inf from pixels to logits, at p = inf and in eval mode: 1 / std."""
        return 1 / self.std

    @property
    def p(self) -> float:
        """The exponent of all layers; setting it sets the relaxation."""
        return next(self._distances()).p

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

    def forward(self, images: Tensor) -> Tensor:
        """images: [B, C, H, W] in [0, 1] -> logits [B, classes]."""
        logits = self.layers(self._flatten(self.normalize(self._check(images))))
        return -logits if self.negate_logits else logits

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds on the logits over the box lower <= image <= upper, at p = inf and in eval mode.

        They enclose what `forward` computes in floating point, rounding included.
        """
        box = self.normalize.bounds(self._check(lower), self._check(upper))
        low, high = self._flatten(box[0]), self._flatten(box[1])
        for layer in self.layers:
            low, high = cast(LpDistance, layer).bounds(low, high)
        return (-high, -low) if self.negate_logits else (low, high)

    def _check(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.image_shape:
            shape = " x ".join(map(str, self.image_shape))
            raise ArgumentError(f"images have shape {tuple(images.shape)}; the net wants [B, {shape}]")
        return images

    @staticmethod
    def _flatten(x: Tensor) -> Tensor:
        return x.flatten(1)

    def config(self) -> dict[str, Any]:
        """What `from_config` needs to build the same net (without its weights)."""
        return {
            "format": FORMAT,
            "image_shape": list(self.image_shape),
            "classes": self.classes,
            "hidden": list(self.hidden),
            "mean": list(self.mean),
            "std": self.std,
            "mean_shift": self.mean_shift,
            "hidden_bias": self.hidden_bias,
            "negate_logits": self.negate_logits,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """A net with fresh weights from the dictionary that `config` gives."""
        if config.get("format") != FORMAT:
            raise LinfnetError(f"the config's format is {config.get('format')!r}; wanted {FORMAT!r}")
        arguments = {key: value for key, value in config.items() if key not in ("format", "class_names")}
        for key in ("mean_shift", "hidden_bias", "negate_logits"):
            if not isinstance(arguments.get(key, True), bool):
                raise LinfnetError(f"the config's {key} is {arguments[key]!r}; wanted true or false")
        try:
            return cls(**arguments)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise LinfnetError(f"the config does not describe a net: {str(error).splitlines()[0]}") from None

    def save(
        self, folder: Path | str, *, class_names: Sequence[str] = (), results: Mapping[str, Any] | None = None
    ) -> None:
        """Write `model.safetensors`, `config.json` and the model card `README.md`, with the results, into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {**self.config(), "class_names": list(class_names)}
        write_tensors(folder / "model.safetensors", self.state_dict(), {"format": "pt", "linfnet": FORMAT})
        write_json(folder / "config.json", config)
        count = sum(parameter.numel() for parameter in self.parameters())
        write_text(folder / "README.md", model_card(config, count, results))

    @classmethod
    def load(cls, folder: Path | str, *, device: torch.device | str = "cpu") -> Self:
        """The net that `save` wrote, in eval mode at p = inf; an error says what is missing or does not fit.

        `hf://user/name` is a model on the Hugging Face hub (needs the extra `hub`).
        """
        folder = find_model(folder)
        config: Any = read_json(folder / "config.json")
        if not isinstance(config, dict):
            raise LinfnetError(f"{folder / 'config.json'} holds no table of settings")
        net = cls.from_config(cast(dict[str, Any], config))
        load_weights(net, read_tensors(folder / "model.safetensors")[0], folder / "model.safetensors")
        return net.to(device).eval()


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
        if not bool(tensor.isfinite().all()):
            raise LinfnetError(f"{source}: {name!r} holds NaN or infinity")
    net.load_state_dict(tensors)
