"""What protects a party's rows? Differential privacy: how much noise, what it costs in total, and a record of that.

`settings` is the section `[privacy]`, `accounting` turns noise into epsilon and back, `noise` draws it, `ledger` adds
up every release of a party. What is released is decided by the method.
Imports `errors`, `system`, `randomness` and `registry`.
"""

from __future__ import annotations

from fedalign.privacy.accounting import NEIGHBOURS, epsilon_of, noise_multiplier
from fedalign.privacy.ledger import Ledger, Release
from fedalign.privacy.settings import Privacy

__all__ = ["NEIGHBOURS", "Ledger", "Privacy", "Release", "epsilon_of", "noise_multiplier"]
