"""One classifier learned from parties that label different classes, without sharing data."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedalign.api import FederatedClassifier, Federation, Progress, train
    from fedalign.errors import UserError
    from fedalign.inference.model import Model
    from fedalign.learning.algorithm import Algorithm
    from fedalign.types import Examples, Server, Update, Visit

__version__ = version("fedalign")
__all__ = [
    "Algorithm",
    "Examples",
    "FederatedClassifier",
    "Federation",
    "Model",
    "Progress",
    "Server",
    "Update",
    "UserError",
    "Visit",
    "__version__",
    "train",
]

_PLACES = {
    "FederatedClassifier": "fedalign.api.classifier",
    "Federation": "fedalign.api",
    "Progress": "fedalign.api",
    "train": "fedalign.api",
    "Model": "fedalign.inference.model",
    "UserError": "fedalign.errors",
    "Algorithm": "fedalign.learning.algorithm",
    "Examples": "fedalign.types",
    "Server": "fedalign.types",
    "Update": "fedalign.types",
    "Visit": "fedalign.types",
}


def __getattr__(name: str) -> Any:
    """Imports names on first use, so that `fedalign --help` works without loading torch."""
    if name not in _PLACES:
        raise AttributeError(f"module 'fedalign' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
