"""Who takes part, in which order, and what they agreed on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedalign.errors import UserError
from fedalign.files import write_atomically
from fedalign.labels import names as label_names
from fedalign.terms import Agreed, Offer
from fedalign.types import Examples, Federation, Party


@dataclass
class Roster:
    """The parties in a fixed order, and what they agreed on."""

    agreed: Agreed
    offers: list[Offer]

    @property
    def federation(self) -> Federation:
        """The federation as the server knows it: names and classes, and no row."""
        parties = [absent(offer, self.agreed) for offer in self.offers]
        agreed = self.agreed
        return Federation(agreed.task, agreed.label_names, parties, agreed.inputs, aliases=agreed.aliases)

    def unknown(self, offer: Offer) -> list[str]:
        """The names of an offer that are not in the agreed list."""
        keys = {label_names.normalised(name) for name in (*self.agreed.label_names, *self.agreed.aliases)}
        return [name for name in offer.classes if label_names.normalised(name) not in keys]

    def extended(self, offer: Offer, new: Sequence[str]) -> Roster:
        """With one more party and its names at the end of the list, so that no class changes its place."""
        agreed = self.agreed.model_copy(update={"label_names": (*self.agreed.label_names, *new)})
        return Roster(agreed, [*self.offers, offer])

    @staticmethod
    def path(folder: Path) -> Path:
        return folder / "parties.json"

    def keep(self, folder: Path) -> None:
        """Writes who takes part and what was agreed, so that a resumed run has the same order."""
        agreed = json.loads(self.agreed.model_dump_json())
        parties = [offer.party for offer in self.offers]
        write_atomically(self.path(folder), json.dumps({"agreed": agreed, "parties": parties}))

    @classmethod
    def again(cls, folder: Path, offers: Sequence[Offer]) -> Roster:
        """The roster of a run that is resumed: the same parties in the same order."""
        stored = json.loads(cls.path(folder).read_text(encoding="utf-8"))
        order = {name: i for i, name in enumerate(stored["parties"])}
        here = {offer.party for offer in offers}
        if here != order.keys():
            gone, new = (", ".join(map(ascii, sorted(some))) for some in (order.keys() - here, here - order.keys()))
            raise UserError(
                f"the run was begun with other parties (missing now: {gone or 'none'}, new: {new or 'none'}); "
                "start the missing ones, and let new ones join after it has resumed"
            )
        agreed = Agreed.model_validate(stored["agreed"])
        return cls(agreed, sorted(offers, key=lambda offer: order[offer.party]))


def absent(offer: Offer, agreed: Agreed) -> Party:
    """A party as the server knows it: its name and classes, and no row."""
    classes = torch.zeros(len(agreed.label_names), dtype=torch.bool)
    classes[agreed.places(offer.classes)] = True
    nothing = torch.zeros(0, len(classes))
    return Party(offer.party, Examples(torch.zeros(0, 0), nothing, nothing.bool(), classes))
