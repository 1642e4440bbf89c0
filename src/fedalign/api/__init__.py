"""How do I use the package from Python? `Federation` holds the data, `train` returns a `Model`.

The command line does nothing that this package cannot. Imports every package but `cli`.
"""

from __future__ import annotations

from fedalign.api.federation import Federation
from fedalign.api.training import Progress, train

__all__ = ["Federation", "Progress", "train"]
