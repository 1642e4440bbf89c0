"""labels.json: what a model needs besides its weights to read rows and to name classes.

The file may come from anywhere, so it is one strict model: unknown keys, wrong types and impossible sizes are refused
before anything is built from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, field_validator, model_validator

from fedalign.errors import UnknownFormatError, UserError
from fedalign.inputs import Inputs
from fedalign.labels.names import MAX_NAMES, allowed
from fedalign.registry import explain
from fedalign.types import Task

FORMAT = 1
AGAIN = "train or export the model again"
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Encoder(BaseModel):
    """The encoder's name and its options, which the encoder itself checks."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str = Field(min_length=1, max_length=4096)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class Head(_Part):
    bias: StrictBool
    normalise: StrictBool


class ModelCard(_Part):
    """The contents of labels.json."""

    format: int = FORMAT
    fedalign: str = Field("", max_length=100)  # the version that wrote it
    task: Task
    label_names: tuple[str, ...] = Field(min_length=1, max_length=MAX_NAMES)
    encoder: Encoder
    head: Head
    inputs: Inputs
    reading: dict[str, Any] | None = None  # which columns of a file hold what
    thresholds: tuple[Probability, ...] | None = None  # one per class, multi-label

    @field_validator("label_names")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            try:
                allowed(name)
            except UserError as error:
                raise ValueError(str(error)) from error
        if len(set(names)) < len(names):
            raise ValueError("a label name occurs twice")
        return names

    @model_validator(mode="after")
    def _consistent(self) -> ModelCard:
        if self.thresholds is not None and len(self.thresholds) != len(self.label_names):
            raise ValueError(f"thresholds for {len(self.thresholds)} of {len(self.label_names)} classes")
        return self

    def as_json(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False)


def parse_card(table: Mapping[str, Any], path: Path) -> ModelCard:
    """The checked card; a file of another format or with a wrong entry is refused with a sentence."""
    version = table.get("format")
    if not isinstance(version, int):
        raise UserError(f"{path} is damaged (it states no format); {AGAIN}")
    if version != FORMAT:
        raise UnknownFormatError(path, version, FORMAT)
    try:
        return ModelCard.model_validate(table)
    except ValidationError as error:
        raise UserError(f"{path} is damaged ({' '.join(explain(error).split())[:300]}); {AGAIN}") from error


def read_card(folder: Path) -> ModelCard:
    """labels.json of a model's folder, checked."""
    path = folder / "labels.json"
    if not path.is_file():
        models = sorted(one.parent for one in folder.glob("parties/*/labels.json"))
        if models:
            raise UserError(f"each party of {folder} has a model of its own; name one, for example {models[0]}")
        hint = "the run is not finished; resume it first" if (folder / "config.toml").is_file() else "check the path"
        raise UserError(f"{folder} holds no trained model (labels.json is missing): {hint}")
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); {AGAIN}") from error
    if not isinstance(table, dict):
        raise UserError(f"{path} is damaged (it holds no table); {AGAIN}")
    return parse_card(table, path)
