"""The section `[privacy]`."""

from __future__ import annotations

import hashlib
import json
import re

from pydantic import Field, field_validator

from fedalign.registry import Section


class Privacy(Section):
    """Noise and masks. Without `epsilon` and `secure_sums` it is off and nothing changes."""

    epsilon: float | None = Field(None, gt=0)  # of one run, for each party's training rows; None: off
    delta: float = 1e-5
    budget: float | None = Field(None, gt=0)  # most epsilon of all runs on a party's file; None: recorded, not limited
    ledger: str = ""  # folder of the ledgers, one per party; empty: beside the parties' files
    secure_sums: bool = False  # masks, so that the server sees the sum over parties and nothing of one party
    threshold: int | None = Field(None, ge=2)  # parties that must stay to the end; None: more than two thirds
    consent: tuple[str, ...] = ()  # classes with fewer than three owners, whose sums show what one or two parties have
    # party -> public key of its identity, in deployments; the parties compare the list by other means than the server
    identities: dict[str, str] = Field(default_factory=dict)
    clip: float = Field(1.0, gt=0)  # gradient methods: longest gradient of one row
    rate: float = Field(0.1, gt=0, le=1)  # gradient methods: probability with which a row is in a step
    seeded: bool = False  # noise from the seed, for tables that can be repeated; it protects nobody

    @field_validator("delta")
    @classmethod
    def _inside(cls, delta: float) -> float:
        if not 0 < delta < 1:
            raise ValueError(
                f"privacy.delta must be above 0 and below 1, not {delta:g}: Gaussian noise has no finite epsilon at "
                "delta 0; 1e-5 is usual"
            )
        return delta

    @field_validator("identities")
    @classmethod
    def _keys(cls, identities: dict[str, str]) -> dict[str, str]:
        for party, key in identities.items():
            if not re.fullmatch("[0-9a-f]{64}", key):
                raise ValueError(
                    f"privacy.identities of {party!r} is not a public key of 64 hexadecimal digits, which fedalign "
                    "receipt identity prints"
                )
        if len(set(identities.values())) < len(identities):
            raise ValueError("privacy.identities holds one key twice; every party has its own")
        return identities

    @property
    def fingerprint(self) -> str:
        """Of the list of identities: 16 hexadecimal digits in groups of four, to be compared by telephone."""
        found = hashlib.sha256(json.dumps(self.identities, sort_keys=True).encode()).hexdigest()[:16]
        return "-".join(found[at : at + 4] for at in range(0, 16, 4))

    @property
    def on(self) -> bool:
        return self.epsilon is not None

    @property
    def protected(self) -> bool:
        """Whether noise or masks are added."""
        return self.on or self.secure_sums
