"""Many parties, or one long file with a column of parties: every file is read once, and no more than one party's rows
are in memory.

What a party holds is kept in a temporary file until the parties agree; then its rows are prepared and stored in another
one (`stored_parties`). The result is that of reading all files at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedalign.errors import UserError, printable
from fedalign.ingest import stored_records
from fedalign.ingest.agree import agree, check_label_memory, check_offer, examples, offer
from fedalign.ingest.columns import read
from fedalign.ingest.holding import Holding, check_positives, positives
from fedalign.ingest.offer import Offer
from fedalign.ingest.reading import Reading
from fedalign.ingest.record_file import StoredList
from fedalign.ingest.records import Records, joined
from fedalign.ingest.stored_parties import StoredParties, concatenated
from fedalign.types import Examples, Federation

if TYPE_CHECKING:
    from fedalign.ingest.party_files import Files

MANY = 1000  # parties; the rows of so many are held in memory
LONG = 1 << 26  # bytes of a file with a column of parties whose rows are held in memory


def too_much(sources: Mapping[str, Path]) -> bool:
    """Whether there are too many parties, or too many rows in one file, to hold them all in memory."""
    if len(sources) > MANY:
        return True
    whole = sources.get("")
    return whole is not None and whole.is_file() and whole.stat().st_size > LONG


def each_party(files: Files, sources: Mapping[str, Path], reading: Reading) -> Iterator[Holding]:
    """The parties one after another, as `files` would read them."""
    for name, path in sources.items():
        yield from files.holdings(name, path, reading) if name else _parties_of(files, path, reading)


def _parties_of(files: Files, path: Path, reading: Reading) -> Iterator[Holding]:
    """The parties of a file with a column of them, sorted. The rows of each are gathered in a temporary file."""
    found: dict[str, StoredList[Records]] = {}
    for records in read(files.open("", path), reading):
        assert records.clients is not None
        for client in sorted(set(records.clients.tolist()) - {""}):
            stored = found.setdefault(client, StoredList(stored_records.pack_records, stored_records.unpack_records))
            stored.append(records.take(np.flatnonzero(records.clients == client)))
    if not found:
        raise UserError(f"{printable(path.name)} holds no rows; write some, or leave the file out")
    for client in sorted(found):
        yield files.holding(client, joined(list(found.pop(client))), reading)


def load_many(files: Files, sources: Mapping[str, Path], reading: Reading) -> Federation:
    """The federation of these files."""
    offers = StoredList(stored_records.pack_offer, Offer.model_validate_json)
    found = StoredList(stored_records.pack_positives, stored_records.unpack_positives)
    held = StoredList(stored_records.pack, stored_records.unpack)
    tested, preparation = 0, files.preparation
    names = []
    for holding in each_party(files, sources, reading):
        names.append(holding.name)
        one = files.divided(holding)
        held.append(one)
        mine = offer(one.name, one.train, one.classes, reading.task, preparation)
        check_offer(mine)
        offers.append(mine)
        found.append(positives(one))
        tested += len(one.parts[2])
    files.check_party_names(names)
    agreed, _ = agree(offers, preparation)
    check_positives(found, agreed, files.min_positives)
    check_label_memory(tested, agreed)
    parties = StoredParties()

    def tests() -> Iterator[Examples]:
        """Stores the rows of each party; yields those for the test, which all parties are scored on."""
        for one in held:
            parts = [examples(part, one.classes, agreed) if len(part) else None for part in one.parts]
            parties.add(one.name, parts)
            if parts[2] is not None:
                yield parts[2]

    own = concatenated(tests())
    if files.test_file:
        own = examples(files.read_test(reading, agreed.label_names), agreed.label_names, agreed)
    return Federation(agreed.task, agreed.label_names, parties, agreed.inputs, own)
