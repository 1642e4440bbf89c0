"""The JSON schema of a configuration, with which editors complete and check TOML files."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from fedalign import registry
from fedalign.config.tables import Config
from fedalign.registry import PLUGINS, Choice

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PROGRAM = r"[.:/\\]"  # in the name of a plugin of the user's own: a file, or package.module


def schema() -> dict[str, Any]:
    """The schema of a TOML file: every section, and for each plugin the options that it has."""
    found = Config.model_json_schema()
    definitions: dict[str, Any] = found.setdefault("$defs", {})
    definitions.pop("Choice", None)
    for folder, section in PLUGINS.items():
        if isinstance(_default(section), Choice):
            found["properties"][section] = _choices(folder, _default(section).name, definitions)
    # `[encoder.parties.NAME]` holds another encoder; its options are checked when the file is read
    for rule in found["properties"]["encoder"]["allOf"]:
        rule["then"]["properties"]["parties"] = {"type": "object", "additionalProperties": {"type": "object"}}
        rule["then"]["properties"]["distilled"] = {"type": "boolean", "default": False}
        rule["then"]["properties"]["taught_rounds"] = {"type": "integer", "minimum": 0, "default": 0}
    # `[when.fedprox]` holds sections that apply to one algorithm only
    # a plugin's section there has no name of its own, so its options are checked when the file is read
    sections = {
        key: {"type": "object"} if key in PLUGINS.values() else value for key, value in found["properties"].items()
    }
    part = {"type": "object", "properties": sections, "additionalProperties": False}
    found["properties"]["when"] = {"type": "object", "additionalProperties": part}
    return {"$schema": DRAFT, "$comment": "made by fedalign config schema", **found, "title": "fedalign configuration"}


def _default(section: str) -> Any:
    field = Config.model_fields.get(section)
    return None if field is None else field.default


def _choices(folder: str, usual: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """The section of one kind of plugin: the options depend on its name."""
    names = registry.names(folder)
    rules = []
    for name in names:
        options = TypeAdapter(registry.find(folder, name)).json_schema(ref_template="#/$defs/{model}")
        definitions.update(options.pop("$defs", {}))
        table = {"properties": {"name": {}, **options.get("properties", {})}, "additionalProperties": False}
        chosen: dict[str, Any] = {"properties": {"name": {"const": name}}}
        if name != usual:
            chosen["required"] = ["name"]  # without a name the section is of the usual plugin
        rules.append({"if": chosen, "then": table})
    word = PLUGINS[folder]
    return {
        "type": "object",
        "title": word,
        "description": f"The {word} and its options; a name may also be a file ./mine.py or package.module",
        "properties": {"name": {"anyOf": [{"enum": names}, {"type": "string", "pattern": PROGRAM}], "default": usual}},
        "allOf": rules,
    }
