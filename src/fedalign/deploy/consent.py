"""What leaves a party in a run, and the party's approval of it. Built from the messages that the party would send."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalign.config import Config
from fedalign.flower.party import binding
from fedalign.flower.preview import CAVEATS, Preview, preview


@dataclass(frozen=True)
class Consent:
    """Everything that a party approves at once."""

    party: str
    config: Config
    leaving: Preview

    def table(self) -> dict[str, Any]:
        """Returns what is approved: names, arrays and settings, but not the number of rows, which may grow."""
        found = self.leaving.table()
        arrays = {when: found[when] for when in self.leaving.replies}
        for entry in arrays.values():
            entry.pop("examples", None)
        return {
            "party": self.party,
            "rounds": self.config.rounds,
            "settings": binding(self.config),
            "names": list(self.leaving.offer.classes),
            "arrays": arrays,
            "counts": found["counts"],
        }

    @property
    def digest(self) -> str:
        """Returns 12 hexadecimal digits that stand for all of it."""
        return hashlib.sha256(json.dumps(self.table(), sort_keys=True, default=str).encode()).hexdigest()[:12]

    def lines(self) -> list[str]:
        """Returns what a person reads before approving."""
        names = ", ".join(map(ascii, self.leaving.offer.classes[:8]))
        more = f" and {len(self.leaving.offer.classes) - 8} more" if len(self.leaving.offer.classes) > 8 else ""
        found = [
            f"algorithm: {self.config.algorithm.name}, {self.config.rounds} rounds at most",
            f"label names, once: {names}{more}",
        ]
        for when, spec in self.leaving.replies.items():
            kinds = sorted({*spec.weights, *spec.extra})
            listed = ", ".join(kinds[:4]) + (f" and {len(kinds) - 4} more" if len(kinds) > 4 else "")
            found.append(f"{when}: {len(kinds)} arrays, {spec.size:,} bytes ({listed})")
        for part, shape in self.leaving.counts.items():
            found.append(f"counts of hits and misses on {part} rows: {' x '.join(map(str, shape))} numbers")
        found += self.leaving.privacy
        return [
            *found,
            *(f"never: {text}" for text in self.leaving.never[: 3 if self.leaving.own_encoder else 2]),
            *(f"note: {text}" for text in CAVEATS[:1]),
        ]


def consent_for(data: Path, config: Config, party: str) -> Consent:
    """Reads the party's file and builds its messages."""
    return Consent(party, config, preview(data, config, party))
