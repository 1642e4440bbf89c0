"""One folder with everything that prediction needs: weights, labels, a README, and an ONNX graph if wanted."""

from __future__ import annotations

import json
import shutil
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedalign.errors import UnknownFormatError, UserError
from fedalign.inference.export.graph import ONNX, TOLERANCE, disagreement, onnx_bytes
from fedalign.inference.export.readme import card
from fedalign.inference.model import Model
from fedalign.inference.storage import RESULT_FORMAT
from fedalign.privacy.attacks import told
from fedalign.system.files import write_atomically

PATHS = ("path", "parties", "test_file", "aliases")  # of the data set's options


def write(model: Model, run: Path, out: Path, onnx: bool) -> float | None:
    """Writes the folder, or nothing if a step fails. Returns the largest difference between graph and model."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already; give another --out")
    config, result = _parsed(run / "config.toml", tomllib.loads), _parsed(run / "result.json", json.loads)
    if result.get("format", RESULT_FORMAT) != RESULT_FORMAT:
        raise UnknownFormatError(run / "result.json", result["format"], RESULT_FORMAT)
    attacks = told(_parsed(run / "audit.json", json.loads))
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        difference = None
        model.save(part)
        if onnx:
            content = onnx_bytes(model)
            difference, relative = disagreement(model, content)
            if not relative <= TOLERANCE:
                raise UserError(f"the ONNX graph differs from the model by {difference:.1e}; nothing was written")
            write_atomically(part / ONNX, content)
        write_atomically(part / "README.md", card(model, _without_paths(config), result, onnx, attacks))
        if out.exists():
            out.rmdir()
        part.chmod(0o755)
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return difference


def _parsed(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """A file of the run that the README quotes; empty if there is none."""
    if not path.is_file():
        return {}
    try:
        found = parse(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("not a table of names and values")
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); train again, or move it away to export without it") from error
    return found


def _without_paths(config: dict[str, Any]) -> dict[str, Any]:
    """The settings without paths of the machine that trained; files of label counts and methods keep their names."""
    dataset = {key: value for key, value in config.get("dataset", {}).items() if key not in PATHS}
    shown: dict[str, Any] = _named({**config, "dataset": dataset}) if config else {}
    return shown


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _named(inner) for key, inner in value.items()}
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
