"""Readers of a deployment's files, of a party's records and of corpora, with valid seeds, for `helpers.hostile`."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedalign.deploy.invitation import new_invitation, read_invitation
from fedalign.deploy.kit import ServerKit
from fedalign.deploy.party import PartyFolder
from fedalign.flower.roster import Roster, StoredRoster
from fedalign.ingest.agree import agree
from fedalign.ingest.offer import Offer
from fedalign.labels.corpus import cooccurrence
from fedalign.privacy import ledger, receipts

Reader = Callable[[bytes, Path], None]
ARCHIVES = ("corpus.tar", "corpus.tar.gz", "corpus.tar.bz2")
CORPORA = (*ARCHIVES, "corpus.jsonl", "corpus.xml", "corpus.json.gz")
OFFER = Offer(party="north", task="multi", kind="text", classes=("angina", "asthma"))
TEXT = "the patient has angina and asthma\n\nno asthma was found\n"
XML = f"<?xml version='1.0'?><doc><title>angina</title><p>{TEXT}</p></doc>"


def corpus_reader(name: str) -> Reader:
    def of(data: bytes, folder: Path) -> None:
        path = folder / name
        path.write_bytes(data)
        rule = cooccurrence.rule(["angina", "asthma"], "paragraph")
        cooccurrence.count(rule, [path], workers=1)

    return of


def kept(name: str, read: Callable[[Path], object]) -> Reader:
    """Reads a file NAME of a folder of its own."""

    def of(data: bytes, folder: Path) -> None:
        own = folder / f"kept-{name}"
        own.mkdir(exist_ok=True)
        (own / name).write_bytes(data)
        read(own)

    return of


def receipt_reader(name: str) -> Reader:
    """Verifies receipts of which one file was changed, then adds one more line, as a party does."""

    def of(data: bytes, folder: Path) -> None:
        own = folder / f"receipts-{name}"
        own.mkdir(exist_ok=True)
        for file, valid in _receipts().items():
            (own / file).write_bytes(data if file == name else valid)
        receipts.verify(own, bytes(32))
        receipts.add(own, {"direction": "out"}, None)

    return of


def _admitted(folder: Path) -> None:
    kit = ServerKit(folder, "127.0.0.1:1", ("north",))
    kit.admitted()
    kit.dropped()


def _ledger(folder: Path) -> None:
    found = ledger.Ledger(folder / "north.ledger")
    found.entries()
    found.check(ledger.Release("sums", "run", 2.0, 1e-5))


READERS: dict[str, Reader] = {
    **{name: corpus_reader(name) for name in CORPORA},
    "receipt.jsonl": receipt_reader("receipt.jsonl"),
    "receipt.head": receipt_reader("receipt.head"),
    "north.ledger": kept("north.ledger", _ledger),
    "invitation.json": kept("invitation.json", lambda folder: read_invitation(folder / "invitation.json").fingerprint),
    "kit.json": kept("kit.json", ServerKit.read),
    "party.json": kept("party.json", PartyFolder.read),
    "admitted.json": kept("admitted.json", _admitted),
    "dropped.json": kept("dropped.json", _admitted),
    "parties.json": kept("parties.json", StoredRoster.read),
}


def seeds(name: str, folder: Path) -> list[bytes]:
    """Valid files of a kind."""
    if name in ARCHIVES:
        return [_packed(_archive(), name)]
    if name in ("receipt.jsonl", "receipt.head"):
        return [_receipts()[name]]
    found: dict[str, Callable[[], str]] = {
        "corpus.jsonl": lambda: json.dumps({"text": TEXT, "id": 7}) + "\n" + json.dumps({"text": "asthma"}) + "\n",
        "corpus.xml": lambda: XML,
        "corpus.json.gz": lambda: json.dumps([{"text": TEXT}, {"text": "asthma"}]),
        "north.ledger": _entries,
        "invitation.json": lambda: _invitation(folder),
        "kit.json": lambda: json.dumps({"format": 1, "address": "127.0.0.1:9092", "parties": ["north", "south"]}),
        "party.json": lambda: json.dumps(
            {"format": 1, "name": "north", "data": "rows.csv", "address": "h:1", "key": "k", "approved": "a"}
        ),
        "admitted.json": lambda: json.dumps({"north": "fa" + "x" * 48}),
        "dropped.json": lambda: json.dumps(["north", "south"]),
        "parties.json": lambda: _parties(folder),
    }
    data = found[name]().encode()
    return [gzip.compress(data) if name.endswith(".gz") else data]


def repaired(name: str, data: bytes) -> bytes:
    """Digests of changed records made right again, so that what comes after that check is reached."""
    try:
        if name == "north.ledger":
            table = json.loads(data)
            previous = ""
            for entry in table["entries"]:
                entry["previous"] = previous
                previous = entry["digest"] = ledger.digest(entry)
            table["last"] = previous
            return json.dumps(table).encode()
        if name == "receipt.jsonl":
            lines = [json.loads(line) for line in data.splitlines()]
            for line in lines:
                line["digest"] = receipts.digest(line)
            return b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return data


def repacked(name: str, data: bytes, mutated: Callable[[bytes], bytes], moments: random.Random) -> bytes:
    """An archive with a changed tar, or with changed members under headers that fit."""
    plain = {"corpus.tar.gz": gzip.decompress, "corpus.tar.bz2": bz2.decompress}.get(name, bytes)(data)
    if moments.random() < 0.5:
        return _packed(mutated(plain), name)
    stream = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(plain)) as old, tarfile.open(fileobj=stream, mode="w") as new:
        for member in old.getmembers():
            inside = old.extractfile(member) if member.isfile() else None
            content = mutated(inside.read()) if inside is not None else b""
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return _packed(stream.getvalue(), name)


def _packed(data: bytes, name: str) -> bytes:
    if name.endswith(".gz"):
        return gzip.compress(data, 1)
    return bz2.compress(data, 1) if name.endswith(".bz2") else data


def _archive() -> bytes:
    stream = io.BytesIO()
    files = {"a.txt": TEXT, "b/c.jsonl": json.dumps({"text": TEXT}), "d.xml": XML, "e.json": json.dumps([TEXT])}
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        for link, kind in (("../up.txt", tarfile.SYMTYPE), ("hard.txt", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(link)
            member.type, member.linkname = kind, "a.txt"
            archive.addfile(member)
    return stream.getvalue()


def _receipts() -> dict[str, bytes]:
    lines: list[dict[str, Any]] = []
    for number in (1, 2, 3):
        line: dict[str, Any] = {"direction": "out", "kind": "train", "number": number}
        line["previous"] = lines[-1]["digest"] if lines else ""
        line["digest"] = receipts.digest(line)
        lines.append({**line, "signature": "00" * 64})
    head = {key: lines[-1][key] for key in receipts.CHAIN}
    return {
        "receipt.jsonl": b"".join(json.dumps(line).encode() + b"\n" for line in lines),
        "receipt.head": json.dumps(head).encode() + b"\n",
    }


def _entries() -> str:
    entries: list[dict[str, Any]] = []
    for number in (1, 2):
        entry: dict[str, Any] = {"number": number, "time": 1.5, "what": "sums", "run": "run", "mechanism": "gaussian"}
        entry |= {"multiplier": 3.0, "rate": 1.0, "steps": 2, "delta": 1e-5, "budget": 40.0, "epsilon": 1.0}
        entry["previous"] = entries[-1]["digest"] if entries else ""
        entries.append({**entry, "digest": ledger.digest(entry)})
    return ledger.written(entries)


def _invitation(folder: Path) -> str:
    path = folder / "seed-invitation.json"
    authority = folder / "seed-ca.crt"
    authority.write_text("-----BEGIN CERTIFICATE-----\n")
    new_invitation("127.0.0.1:9092", authority, "rounds = 2\n", ["north"]).write(path)
    return path.read_text()


def _parties(folder: Path) -> str:
    agreed, _ = agree([OFFER], _text_preparation(), {})
    Roster(agreed, [OFFER]).keep(folder)
    return Roster.path(folder).read_text()


def _text_preparation() -> Any:
    from fedalign import registry

    return registry.build("datasets", "files", {"text": "note", "labels": "codes", "buckets": 64}).preparation
