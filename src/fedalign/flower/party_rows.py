"""A party's rows as they come from its file, or from a preset for trials, and what it offers before the first round."""

from __future__ import annotations

from typing import Protocol

from fedalign import registry
from fedalign.errors import UserError
from fedalign.flower.party import SERVER_ONLY, PartySetup
from fedalign.ingest.agree import examples, offer
from fedalign.ingest.offer import Agreement, Offer
from fedalign.ingest.party_files import Files
from fedalign.runs import experiment
from fedalign.types import Examples

OF_PARTIES = ("classes", "columns")  # options with a table for each party, of which it needs its own


class Rows(Protocol):
    def offer(self) -> Offer: ...

    def parts(self, agreed: Agreement) -> dict[str, Examples]:
        """Training, validation and test rows, as far as there are any."""
        ...


class FileRows:
    def __init__(self, here: PartySetup) -> None:
        options = {key: value for key, value in here.config.dataset.options.items() if key not in SERVER_ONLY}
        for key in OF_PARTIES:
            options[key] = {name: value for name, value in options.get(key, {}).items() if name == here.name}
        files = registry.build("datasets", "files", {**options, "parties": {here.name: str(here.data)}})
        assert isinstance(files, Files)
        self.files = files
        reading = self.files.reading()
        (held,) = self.files.read(reading)
        self.held = self.files.divided(held)
        self.task = reading.task

    def offer(self) -> Offer:
        return offer(self.held.name, self.held.train, self.held.classes, self.task, self.files.preparation)

    def parts(self, agreed: Agreement) -> dict[str, Examples]:
        names = ("train", "validation", "test")
        return {
            name: examples(part, self.held.classes, agreed)
            for name, part in zip(names, self.held.parts, strict=True)
            if len(part)
        }


class PresetRows:
    def __init__(self, here: PartySetup) -> None:
        assert here.partition is not None
        self.federation = experiment.federation(here.config)
        if here.partition >= len(self.federation.parties):
            raise UserError(f"partition-id={here.partition}, but there are {len(self.federation.parties)} clients")
        self.party = self.federation.parties[here.partition]

    def offer(self) -> Offer:
        names = [name for name, own in zip(self.federation.label_names, self.party.train.classes, strict=True) if own]
        found = self.federation
        return Offer(party=self.party.name, task=found.task, kind=found.inputs.kind, classes=tuple(names))

    def parts(self, agreed: Agreement) -> dict[str, Examples]:
        found = {"train": self.party.train, "validation": self.party.validation, "test": self.party.test}
        return {name: part for name, part in found.items() if part is not None}
