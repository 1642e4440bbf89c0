"""Many parties, or one long file with a column of parties: every file is read once, and no more than one party's rows
are in memory; of a large party in a long file, a piece of them (`party_pieces`).

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
from fedalign.ingest.agree import agree, check_label_memory, check_offer, examples, offer, offer_in_pieces
from fedalign.ingest.columns import read
from fedalign.ingest.holding import Holding, check_positives, positives
from fedalign.ingest.offer import Agreement, Offer
from fedalign.ingest.party_pieces import Batches, DividedPieces, PartyBatches, TrainingPieces
from fedalign.ingest.reading import Reading
from fedalign.ingest.record_file import StoredList
from fedalign.ingest.stored_parties import Parts, StoredParties
from fedalign.ingest.stored_rows import Gathered
from fedalign.system.allocation import return_freed_memory
from fedalign.types import Federation

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


def each_party(
    files: Files, sources: Mapping[str, Path], reading: Reading
) -> Iterator[tuple[Holding, PartyBatches | None]]:
    """The parties one after another, as `files` would read them; with batches, the input is in these."""
    for name, path in sources.items():
        if name:
            yield from ((holding, None) for holding in files.holdings(name, path, reading))
        else:
            yield from _parties_of(files, path, reading)


def _parties_of(files: Files, path: Path, reading: Reading) -> Iterator[tuple[Holding, PartyBatches | None]]:
    """The parties of a file with a column of them, sorted."""
    found = Batches()
    for records in read(files.open("", path), reading):
        assert records.clients is not None
        for client in sorted(set(records.clients.tolist()) - {""}):
            found.add(client, records.take(np.flatnonzero(records.clients == client)))
    if not found.parties:
        raise UserError(f"{printable(path.name)} holds no rows; write some, or leave the file out")
    for client in found.parties:
        batches = found.of(client)
        if batches.large:
            yield files.holding(client, batches.places(), reading), batches
        else:
            yield files.holding(client, batches.whole(), reading), None


def load_many(files: Files, sources: Mapping[str, Path], reading: Reading) -> Federation:
    """The federation of these files."""
    offers = StoredList(stored_records.pack_offer, Offer.model_validate_json)
    found = StoredList(stored_records.pack_positives, stored_records.unpack_positives)
    held = StoredList(stored_records.pack, stored_records.unpack)
    inputs: dict[int, PartyBatches] = {}  # of a large party: its number and where its input is
    tested, preparation = 0, files.preparation
    names = []
    for holding, batches in each_party(files, sources, reading):
        names.append(holding.name)
        one = files.divided(holding)
        if batches is None:
            mine = offer(one.name, one.train, one.classes, reading.task, preparation)
        else:
            inputs[len(held)] = batches
            training = TrainingPieces(DividedPieces(one, batches))
            mine = offer_in_pieces(one.name, training, one.classes, reading.task, preparation)
        held.append(one)
        check_offer(mine)
        offers.append(mine)
        found.append(positives(one))
        tested += len(one.parts[2])
    files.check_party_names(names)
    agreed, _ = agree(offers, preparation)
    check_positives(found, agreed, files.min_positives)
    check_label_memory(tested, agreed)
    parties, tests = StoredParties(), Gathered()
    for number, one in enumerate(held):
        parties.add(one.name, _prepared(DividedPieces(one, inputs.get(number)), agreed, tests))
    own = tests.examples()
    if files.test_file:
        own = examples(files.read_test(reading, agreed.label_names), agreed.label_names, agreed)
    return_freed_memory()
    return Federation(agreed.task, agreed.label_names, parties, agreed.inputs, own)


def _prepared(party: DividedPieces, agreed: Agreement, tests: Gathered) -> Iterator[Parts]:
    """The rows of a party as tensors. Those for the test are gathered too: all parties are scored on them."""
    for parts in party:
        found = [examples(part, party.rows.classes, agreed) if len(part) else None for part in parts]
        if found[2] is not None:
            tests.append(found[2])
        yield found
