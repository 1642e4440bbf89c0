"""What protects a party's rows? Noise with a record of what it costs, masks, receipts, and attacks to try them.

`settings` is the section `[privacy]`, `accounting` turns noise into epsilon and back, `noise` draws it, `ledger` adds
up every release of a party. What is released is decided by the method. `secure_sums` adds numbers that nobody sees,
`receipts` chains and signs a party's record of messages, `attacks` has the arithmetic of `diagnosis/audit.py`.
Imports `errors`, `system`, `randomness` and `registry`.
"""

from __future__ import annotations

from fedalign.privacy.accounting import NEIGHBOURS, epsilon_of, noise_multiplier
from fedalign.privacy.ledger import Ledger, Release
from fedalign.privacy.settings import Privacy

__all__ = ["NEIGHBOURS", "Ledger", "Privacy", "Release", "epsilon_of", "noise_multiplier"]
