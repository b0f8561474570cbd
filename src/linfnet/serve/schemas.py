"""Pydantic models of the JSON requests and responses; they validate requests and define openapi.json."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, confloat, conlist, create_model
from starlette.exceptions import HTTPException

M = TypeVar("M", bound=BaseModel)
Fit = Literal["none", "crop", "resize", "digit"]
Pixels = list[list[list[float]]]
GUARANTEE = "what the certified radii promise, such as `proven in float32`"


class _Object(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Error(_Object):
    """The response to a request that failed."""

    error: str


class Class(_Object):
    """A class of the net."""

    index: int
    name: str


class Score(Class):
    """The score of one class."""

    logit: float


class Sample(_Object):
    """An image of the test set."""

    url: str = Field(description="the path of a PNG file of the net's size")
    label: Class


class Model(_Object):
    """The net that is served."""

    name: str
    linfnet: str = Field(description="the version of linfnet")
    image_shape: list[int] = Field(description="channels, rows, columns")
    class_names: list[str]
    system: str
    parameters: int
    lipschitz: float | None = Field(description="no logit changes by more than this times ε, if rounding is ignored")
    arithmetic: Literal["float32", "real"] = Field(description="the arithmetic for which the certificates hold")
    confidence: float = Field(description="the probability that a certificate is correct")
    guarantee: str = Field(description=GUARANTEE)
    fit: Fit = Field(description="how the page fits pictures of other sizes")
    samples: list[Sample] = Field(description="test images of the data set, if it is in the cache")


class Prediction(_Object):
    """The class of an image and its certified radii, null if two classes tie or the net has no such certificate."""

    class_: Class = Field(serialization_alias="class")
    runner_up: Class
    radius: float | None = Field(description="the largest certified radius")
    margin_radius: float | None
    interval_radius: float | None
    guarantee: str = Field(description=GUARANTEE)
    scores: list[Score]
    pixels: Pixels = Field(description="the pixels as the net received them")


class Perturbed(_Object):
    """An image that the attack found."""

    distance: float = Field(description="the largest change of a pixel")
    class_: Class = Field(serialization_alias="class")
    pixels: Pixels


class Trial(_Object):
    """The smallest margin that the attack found at one ε."""

    eps: float
    margin: float
    broken: bool


class Attack(_Object):
    """The closest misclassified image that the attack found, or the result of an attack within one ε."""

    class_: Class = Field(serialization_alias="class")
    radius: float | None
    guarantee: str = Field(description=GUARANTEE)
    broken: Perturbed | None = Field(description="the misclassified image; null if no attack succeeded")
    strongest: Perturbed | None = Field(description="the image with the smallest margin within `eps`, if it was given")
    trials: list[Trial]
    complete: bool = Field(description="false if the attack ran out of time")
    seconds: float


class ImageRequest(_Object):
    """The body of a request for a prediction."""

    pixels: Pixels


class AttackRequest(ImageRequest):
    """The body of a request for an attack."""

    steps: int = Field(40, ge=1, le=200, strict=True)
    eps: float | None = Field(None, gt=0, le=1, strict=True, description="attack within this ε only")


def with_shape(model: type[M], shape: tuple[int, int, int]) -> type[M]:
    """Return a request model for pixels of the given shape; if there is only one channel, [H][W] is also accepted."""
    pixels: Any = confloat(ge=0, le=1, strict=True, allow_inf_nan=False)
    for size in reversed(shape):
        pixels = conlist(pixels, min_length=size, max_length=size)
    if shape[0] == 1:
        pixels = Annotated[pixels, BeforeValidator(_add_channel)]
    return create_model(model.__name__, __base__=model, pixels=(pixels, ...))


def parse_request(model: type[M], body: bytes) -> M:
    """Parse a JSON body as a model; the error names the first invalid field."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise HTTPException(400, describe_error(error.errors()[0])) from None


def describe_error(error: Mapping[str, Any]) -> str:
    """Return a one-line message about a value that pydantic rejected.

    >>> describe_error({"type": "t", "loc": ("pixels", 0, 4), "input": 1.5, "msg": "Input should be at most 1"})
    'pixels[0][4] is 1.5; input should be at most 1'
    """
    message: str = error["msg"][0].lower() + error["msg"][1:]
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {message}"
    path = "".join(f"[{part}]" if isinstance(part, int) else repr(part[:40])[1:-1] for part in error["loc"])
    if error["type"] == "missing":
        return f"{path} is missing"
    return f"{path or 'the body'} is {repr(error['input'])[:40]}; {message}"


def _add_channel(pixels: Any) -> Any:
    """Return [H][W] as [1][H][W], and anything else unchanged."""
    rows = cast(list[Any], pixels) if isinstance(pixels, list) else []
    first = cast(list[Any], rows[0]) if rows and isinstance(rows[0], list) else []
    return [pixels] if first and not isinstance(first[0], list) else pixels
