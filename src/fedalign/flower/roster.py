"""Who takes part, in which order, and what they agreed on."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fedalign.errors import UserError
from fedalign.ingest.agree import Preparation, agree
from fedalign.ingest.offer import Agreement, Offer
from fedalign.labels import names as label_names
from fedalign.labels.names import Near
from fedalign.system.files import write_atomically
from fedalign.types import Examples, Federation, Party


@dataclass
class Roster:
    """The parties in a fixed order, and what they agreed on."""

    agreed: Agreement
    offers: list[Offer]
    run: str = field(default_factory=lambda: secrets.token_hex(16))  # what the parties keep their memory under
    how: Preparation = field(default_factory=dict)
    approved: tuple[str, ...] = ()  # names that look like another party's and are meant

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

    def objection(self, offer: Offer) -> str:
        """Why a party must not join, by the rules of the opening step; empty if it may."""
        try:
            _, near = agree([*self.offers, offer], self.how, self.agreed.aliases)
        except UserError as error:
            return str(error)
        return next(map(held, look_alikes(near, [*self.offers, offer], self.approved)), "")

    def extended(self, offer: Offer, new: Sequence[str]) -> Roster:
        """With one more party and its names at the end of the list, so that no class changes its place."""
        names = (*self.agreed.label_names, *map(label_names.allowed, new))
        agreed = self.agreed.model_copy(update={"label_names": names})
        return replace(self, agreed=agreed, offers=[*self.offers, offer])

    @staticmethod
    def path(folder: Path) -> Path:
        return folder / "parties.json"

    def keep(self, folder: Path) -> None:
        """Writes who takes part and what was agreed, so that a resumed run has the same order."""
        agreed = json.loads(self.agreed.model_dump_json())
        parties = [offer.party for offer in self.offers]
        write_atomically(self.path(folder), json.dumps({"run": self.run, "agreed": agreed, "parties": parties}))

    @classmethod
    def again(cls, stored: Stored, offers: Sequence[Offer], how: Preparation, approved: tuple[str, ...]) -> Roster:
        """The roster of a run that is resumed: the same parties in the same order. Others join once it goes on."""
        offered = {offer.party: offer for offer in offers}
        return cls(stored.agreed, [offered[name] for name in stored.parties], stored.run, how, approved)


@dataclass(frozen=True)
class Stored:
    """What a run's folder tells of its parties."""

    agreed: Agreement
    parties: tuple[str, ...]
    run: str
    old: bool  # of a run whose key was made from configuration and agreement, not drawn

    @classmethod
    def read(cls, folder: Path) -> Stored:
        table = json.loads(Roster.path(folder).read_text(encoding="utf-8"))
        agreed = Agreement.model_validate(table["agreed"])
        key = table.get("run")
        if key is None:
            config = (folder / "config.toml").read_text(encoding="utf-8")
            key = hashlib.sha256((config + agreed.model_dump_json()).encode()).hexdigest()
        return cls(agreed, tuple(table["parties"]), key, "run" not in table)


def look_alikes(near: Sequence[Near], offers: Sequence[Offer], approved: Sequence[str]) -> Iterator[Near]:
    """Pairs of different parties' names that look alike and that nobody approved."""
    owned = [{label_names.normalised(name) for name in offer.classes} for offer in offers]
    for pair in near:
        keys = {label_names.normalised(pair.first), label_names.normalised(pair.second)}
        one_party = any(keys <= own for own in owned)
        if pair.reason == "look alike" and not one_party and not {pair.first, pair.second} & set(approved):
            yield pair


def held(pair: Near) -> str:
    return (
        f"{pair.first!a} and {pair.second!a} of different parties look alike; join them with an alias, or put one of "
        "them into approved if both are meant"
    )


def absent(offer: Offer, agreed: Agreement) -> Party:
    """A party as the server knows it: its name and classes, and no row."""
    classes = torch.zeros(len(agreed.label_names), dtype=torch.bool)
    classes[agreed.places(offer.classes)] = True
    nothing = torch.zeros(0, len(classes))
    return Party(offer.party, Examples(torch.zeros(0, 0), nothing, nothing.bool(), classes))
