"""The API as an OpenAPI 3.1 document, for the net that is served."""

from typing import Any

from linfnet.serve.decode import FITS
from linfnet.version import __version__

ERRORS = {
    "400": "wrong or broken content",
    "403": "a foreign Host or Origin",
    "408": "the body took too long",
    "413": "the body or the picture is too large",
    "415": "another content type is wanted",
    "429": "too many requests at once",
    "503": "no turn came in time",
}


def describe_api(shape: tuple[int, int, int], classes: int) -> dict[str, Any]:
    """The document for a net of that image shape."""
    pixels: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 1}
    for size in reversed(shape):
        pixels = {"type": "array", "items": pixels, "minItems": size, "maxItems": size}
    number, nullable = {"type": "number"}, {"type": ["number", "null"]}
    klass = _object({"index": {"type": "integer"}, "name": {"type": "string"}})
    score = _object({**klass["properties"], "logit": number, "earliest_eps": nullable})
    broken = _object({"distance": number, "class": klass, "pixels": pixels})
    schemas = {
        "Error": _object({"error": {"type": "string"}}),
        "Model": _object(
            {
                "name": {"type": "string"},
                "linfnet": {"type": "string"},
                "image_shape": {"type": "array", "items": {"type": "integer"}},
                "class_names": {"type": "array", "items": {"type": "string"}, "minItems": classes, "maxItems": classes},
                "system": {"type": "string"},
                "parameters": {"type": "integer"},
                "lipschitz": nullable,
                "arithmetic": {"enum": ["float32", "real"]},
                "confidence": number,
                "fit": {"enum": list(FITS)},
            }
        ),
        "Prediction": _object(
            {
                "class": klass,
                "runner_up": klass,
                "radius": nullable,
                "margin_radius": nullable,
                "interval_radius": nullable,
                "scores": {"type": "array", "items": score, "minItems": classes, "maxItems": classes},
                "pixels": pixels,
            }
        ),
        "Attack": _object(
            {
                "class": klass,
                "radius": nullable,
                "broken": {"anyOf": [broken, {"type": "null"}]},
                "trials": {
                    "type": "array",
                    "items": _object({"eps": number, "margin": number, "broken": {"type": "boolean"}}),
                },
                "complete": {"type": "boolean"},
                "seconds": number,
            }
        ),
    }
    picture = {"schema": {"type": "string", "contentMediaType": "image/png"}}
    image = _object({"pixels": pixels})
    steps = {**image, "properties": {"pixels": pixels, "steps": {"type": "integer", "minimum": 1, "maximum": 200}}}
    fit = {"name": "fit", "in": "query", "schema": {"enum": list(FITS), "default": "none"}}
    posted = {"application/json": {"schema": image}, "image/png": picture, "image/jpeg": picture}
    return {
        "openapi": "3.1.0",
        "info": {"title": "linfnet serve", "version": __version__},
        "paths": {
            "/api/model": {"get": _operation("The net that is served", "Model")},
            "/api/predict": {
                "post": {
                    **_operation("Class, certified radius, runner-up and scores of an image", "Prediction", ERRORS),
                    "parameters": [fit],
                    "requestBody": {"required": True, "content": posted},
                }
            },
            "/api/attack": {
                "post": {
                    **_operation("The closest misclassified image that PGD finds", "Attack", ERRORS),
                    "requestBody": {"required": True, "content": {"application/json": {"schema": steps}}},
                }
            },
        },
        "components": {"schemas": schemas},
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _operation(summary: str, schema: str, errors: dict[str, str] | None = None) -> dict[str, Any]:
    def answer(text: str, name: str) -> dict[str, Any]:
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        return {"description": text, "content": content}

    refused = {status: answer(text, "Error") for status, text in (errors or {"403": ERRORS["403"]}).items()}
    return {"summary": summary, "responses": {"200": answer(summary, schema), **refused}}
