"""What the OpenAPI document says beyond what the routes' signatures say."""

from __future__ import annotations

from typing import Any

from fedalign.inputs import InputKind
from fedalign.serve.bodies import IMAGES

ABOUT = (
    "Predictions by label name. If the server was started with a token, /predict and /model need the header "
    "`Authorization: Bearer TOKEN`."
)
ERROR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
            "required": ["code", "message"],
        }
    },
    "required": ["error"],
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": ERROR}}}
    for status, text in (
        (401, "The token is missing or wrong"),
        (413, "Too many bytes or rows"),
        (415, "Neither JSON nor a file that is read"),
        (422, "Rows that the model does not read; the message names row and column"),
        (503, "The request took too long"),
    )
}
NO_TOKEN: dict[int | str, dict[str, Any]] = {401: RESPONSES[401]}
PREDICTIONS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "predictions": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "row": {"type": "integer", "description": "As a person counts them; a CSV begins at 2."},
                    "labels": {"type": "array", "items": {"type": "string"}},
                    "top": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "label": {"type": "string"},
                                "probability": {"type": "number"},
                                "because": {
                                    "type": "array",
                                    "description": "Only with explain: words or columns, and the change of the "
                                    "class's log-odds compared with the row without them.",
                                    "items": {
                                        "type": "object",
                                        "properties": {"part": {"type": "string"}, "change": {"type": "number"}},
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
        "skipped": {"type": "array", "items": {"type": "integer"}, "description": "Rows without any input."},
    },
}
ROWS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "rows": {
            "type": "array",
            "items": {},
            "description": "Objects with the columns of training; or texts, lists of numbers, or recordings (lists of "
            "steps).",
        }
    },
    "required": ["rows"],
    "additionalProperties": False,
}
FILE = {"schema": {"type": "string", "format": "binary"}}
OPTIONS: list[dict[str, Any]] = [
    {"name": name, "in": "query", "required": False, "description": about, "schema": schema}
    for name, about, schema in (
        (
            "top",
            "How many classes to list with their probability.",
            {"type": "integer", "minimum": 1, "maximum": 1000, "default": 3},
        ),
        (
            "threshold",
            "Multi-label: one threshold for all classes.",
            {"type": "number", "minimum": 0, "maximum": 1},
        ),
        (
            "explain",
            "How many words or columns that decided to list per class (analytic learning only).",
            {"type": "integer", "minimum": 0, "maximum": 100, "default": 0},
        ),
    )
]
PREDICT: dict[str, Any] = {
    "summary": "Label names for new rows",
    "operationId": "predict",
    "parameters": OPTIONS,
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": ROWS, "example": {"rows": ["Wheezing at night, inhaler helps."]}},
            "multipart/form-data": {
                "schema": {"type": "object", "properties": {"file": {"type": "string", "format": "binary"}}}
            },
            "text/csv": FILE,
            "application/x-ndjson": FILE,
            "application/vnd.apache.parquet": FILE,
        },
    },
    "responses": {
        "200": {"description": "One entry per row", "content": {"application/json": {"schema": PREDICTIONS}}},
        **{str(status): about for status, about in RESPONSES.items()},
    },
}


IMAGE_BODIES: dict[str, Any] = {
    "multipart/form-data": PREDICT["requestBody"]["content"]["multipart/form-data"],
    **dict.fromkeys(IMAGES, FILE),
    "application/json": {
        "schema": {
            **ROWS,
            "properties": {
                "rows": {
                    "type": "array",
                    "items": {},
                    "description": "Images as lists (height, width, channels) of pixels from 0 to 1.",
                }
            },
        },
        "example": {"rows": [[[[0.9, 0.1, 0.1], [0.2, 0.2, 0.8]]]]},
    },
}


def with_predict(found: dict[str, Any], inputs: InputKind) -> dict[str, Any]:
    """The OpenAPI document of the other routes, with POST /predict before them."""
    predict = {**PREDICT, "x-file": inputs.new_file}  # in the examples of the page
    if inputs.opens_files:
        predict["requestBody"] = {"required": True, "content": IMAGE_BODIES}
    return {**found, "paths": {"/predict": {"post": predict}, **found["paths"]}}
