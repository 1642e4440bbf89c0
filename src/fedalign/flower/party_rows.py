"""Reads a party's rows from its file, or from a preset for trials, and makes its offer before the first round."""

from __future__ import annotations

from typing import Protocol

from fedalign import registry
from fedalign.errors import UserError
from fedalign.flower.kit import SERVER_ONLY
from fedalign.flower.party import PartySetup
from fedalign.ingest.agree import examples, offer
from fedalign.ingest.offer import Agreement, Offer
from fedalign.ingest.party_files import Files
from fedalign.runs import experiment
from fedalign.types import Examples

OF_PARTIES = ("classes", "columns")  # options with one table per party, of which a party needs its own


class Rows(Protocol):
    """The rows of one party."""

    def offer(self) -> Offer:
        """Returns what the party tells the server before the first round."""
        ...

    def parts(self, agreed: Agreement) -> dict[str, Examples]:
        """Returns the training, validation and test rows that there are."""
        ...


class FileRows:
    """Rows of a party's own file."""

    def __init__(self, setup: PartySetup) -> None:
        options = {key: value for key, value in setup.config.dataset.options.items() if key not in SERVER_ONLY}
        for key in OF_PARTIES:
            options[key] = {name: value for name, value in options.get(key, {}).items() if name == setup.name}
        files = registry.build("datasets", "files", {**options, "parties": {setup.name: str(setup.data)}})
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
    """Rows of a preset's client, for trials."""

    def __init__(self, setup: PartySetup) -> None:
        assert setup.partition is not None
        self.federation = experiment.federation(setup.config)
        if setup.partition >= len(self.federation.parties):
            raise UserError(f"partition-id={setup.partition}, but there are {len(self.federation.parties)} clients")
        self.party = self.federation.parties[setup.partition]

    def offer(self) -> Offer:
        names = [name for name, own in zip(self.federation.label_names, self.party.train.classes, strict=True) if own]
        found = self.federation
        return Offer(party=self.party.name, task=found.task, kind=found.inputs.kind, classes=tuple(names))

    def parts(self, agreed: Agreement) -> dict[str, Examples]:
        found = {"train": self.party.train, "validation": self.party.validation, "test": self.party.test}
        return {name: part for name, part in found.items() if part is not None}
