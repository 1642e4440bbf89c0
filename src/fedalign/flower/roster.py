"""The parties of a run, their order, and what they agreed on."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fedalign.errors import UserError
from fedalign.ingest.agree import Preparation, agree
from fedalign.ingest.offer import Agreement, Offer
from fedalign.labels import names as label_names
from fedalign.labels.names import Near, Similarity
from fedalign.system.files import write_atomically
from fedalign.types import Examples, Federation, Party

FORMAT = 1  # of parties.json


@dataclass
class Roster:
    """The parties in a fixed order, and what they agreed on."""

    agreed: Agreement
    offers: list[Offer]
    run: str = field(default_factory=lambda: secrets.token_hex(16))  # the key of the parties' client state
    how: Preparation = field(default_factory=dict)
    approved: tuple[str, ...] = ()  # names that look like another party's and are correct

    @property
    def federation(self) -> Federation:
        """Returns the federation as the server knows it: names and classes, no rows."""
        parties = [absent(offer, self.agreed) for offer in self.offers]
        agreed = self.agreed
        return Federation(agreed.task, agreed.label_names, parties, agreed.inputs, aliases=agreed.aliases)

    def unknown(self, offer: Offer) -> list[str]:
        """Returns the names of an offer that are not in the agreed list."""
        keys = {label_names.normalised(name) for name in (*self.agreed.label_names, *self.agreed.aliases)}
        return [name for name in offer.classes if label_names.normalised(name) not in keys]

    def objection(self, offer: Offer) -> str:
        """Returns why a party must not join, by the rules for the first parties; empty if it may."""
        try:
            _, near = agree([*self.offers, offer], self.how, self.agreed.aliases)
        except UserError as error:
            return str(error)
        return next(map(refusal, look_alikes(near, [*self.offers, offer], self.approved)), "")

    def extended(self, offer: Offer, new: Sequence[str]) -> Roster:
        """Returns the roster with one more party. Its new names are appended, so that no class changes its index."""
        names = (*self.agreed.label_names, *map(label_names.allowed, new))
        agreed = self.agreed.model_copy(update={"label_names": names})
        return replace(self, agreed=agreed, offers=[*self.offers, offer])

    @staticmethod
    def path(folder: Path) -> Path:
        return folder / "parties.json"

    def keep(self, folder: Path) -> None:
        """Stores the parties and what was agreed, so that a resumed run has the same order."""
        agreed = json.loads(self.agreed.model_dump_json())
        parties = [offer.party for offer in self.offers]
        # the classes stand for a party that is dropped later
        classes = {offer.party: list(offer.classes) for offer in self.offers}
        table = {"format": FORMAT, "run": self.run, "agreed": agreed, "parties": parties, "classes": classes}
        write_atomically(self.path(folder), json.dumps(table))

    @classmethod
    def resumed(
        cls, stored: StoredRoster, offers: Sequence[Offer], how: Preparation, approved: tuple[str, ...]
    ) -> Roster:
        """Returns the roster of a resumed run: the same parties in the same order. Other parties join later."""
        offered = {offer.party: offer for offer in offers}
        found = [offered[name] if name in offered else stored.gone(name) for name in stored.parties]
        return cls(stored.agreed, found, stored.run, how, approved)


@dataclass(frozen=True)
class StoredRoster:
    """The parties of a run as its folder stores them."""

    agreed: Agreement
    parties: tuple[str, ...]
    run: str
    derived_key: bool  # the run's key was derived from configuration and agreement, as the first version did
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # party -> the names it annotates

    def gone(self, party: str) -> Offer:
        """Returns what stands for a party that left: it keeps its number and its classes, and is never asked."""
        if party not in self.classes:
            raise UserError(f"this run did not store the classes of {party!a}, so it cannot resume without it")
        kind = self.agreed.inputs.kind
        return Offer(party=party, task=self.agreed.task, kind=kind, classes=tuple(self.classes[party]))

    @classmethod
    def read(cls, folder: Path) -> StoredRoster:
        path = Roster.path(folder)
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
            version = table.get("format", FORMAT)  # the first version stored none
            if version != FORMAT:
                raise UserError(
                    f"{path} has the format {version!r:.80}, which this version does not know; resume the run with the "
                    "version of fedalign that wrote it"
                )
            agreed, parties = Agreement.model_validate(table["agreed"]), tuple(map(str, table["parties"]))
            key = table.get("run")
            if key is None:
                config = (folder / "config.toml").read_text(encoding="utf-8")
                key = hashlib.sha256((config + agreed.model_dump_json()).encode()).hexdigest()
            if not isinstance(key, str):
                raise TypeError(key)
            return cls(agreed, parties, key, "run" not in table, dict(table.get("classes", {})))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{path} is damaged; restore it from a copy, or start a new run") from error


def look_alikes(near: Sequence[Near], offers: Sequence[Offer], approved: Sequence[str]) -> Iterator[Near]:
    """Yields pairs of different parties' names that look alike and that are not approved."""
    owned = [{label_names.normalised(name) for name in offer.classes} for offer in offers]
    for pair in near:
        keys = {label_names.normalised(pair.first), label_names.normalised(pair.second)}
        one_party = any(keys <= own for own in owned)
        if pair.reason is Similarity.LOOK_ALIKE and not one_party and not {pair.first, pair.second} & set(approved):
            yield pair


def refusal(pair: Near) -> str:
    return (
        f"{pair.first!a} and {pair.second!a} of different parties look alike; join them with an alias, or add one of "
        "them to approved if both are correct"
    )


def absent(offer: Offer, agreed: Agreement) -> Party:
    """Returns a party as the server knows it: its name and classes, no rows."""
    classes = torch.zeros(len(agreed.label_names), dtype=torch.bool)
    classes[agreed.places(offer.classes)] = True
    nothing = torch.zeros(0, len(classes))
    return Party(offer.party, Examples(torch.zeros(0, 0), nothing, nothing.bool(), classes))
