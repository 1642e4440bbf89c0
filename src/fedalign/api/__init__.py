"""How do I use the package from Python? `Federation` holds the data, `train` returns a `Model`.

The command line does nothing that this package cannot. Imports every package but `cli`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedalign.api.federation import Federation
from fedalign.api.training import Progress, train

if TYPE_CHECKING:
    from fedalign.api.classifier import FederatedClassifier

__all__ = ["FederatedClassifier", "Federation", "Progress", "train"]


def __getattr__(name: str) -> Any:
    """Imports the classifier on first use: scikit-learn takes a second to import."""
    if name != "FederatedClassifier":
        raise AttributeError(f"module 'fedalign.api' has no attribute {name!r}")
    from fedalign.api.classifier import FederatedClassifier

    return FederatedClassifier
