"""The section `[privacy]`."""

from __future__ import annotations

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

    @property
    def on(self) -> bool:
        return self.epsilon is not None

    @property
    def protected(self) -> bool:
        """Whether noise or masks are added."""
        return self.on or self.secure_sums
