"""A folder with many parties: every file is read once, and no more than one party's rows are in memory.

What a file holds is kept in a temporary file until the parties agree; then its rows are prepared and stored in another
one (`stored_parties`). The result is that of reading all files at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedalign.ingest import stored_records
from fedalign.ingest.agree import agree, check_label_memory, check_offer, examples, offer
from fedalign.ingest.holding import check_positives, positives
from fedalign.ingest.offer import Offer
from fedalign.ingest.reading import Reading
from fedalign.ingest.record_file import StoredList
from fedalign.ingest.stored_parties import StoredParties, concatenated
from fedalign.types import Examples, Federation

if TYPE_CHECKING:
    from fedalign.ingest.party_files import Files

MANY = 1000  # parties; the rows of so many are held in memory


def load_many(files: Files, sources: Mapping[str, Path], reading: Reading) -> Federation:
    """The federation of these files, one per party."""
    offers = StoredList(stored_records.pack_offer, Offer.model_validate_json)
    found = StoredList(stored_records.pack_positives, stored_records.unpack_positives)
    held = StoredList(stored_records.pack, stored_records.unpack)
    tested, preparation = 0, files.preparation
    for name, path in sources.items():
        [holding] = files.holdings(name, path, reading)
        one = files.divided(holding)
        held.append(one)
        mine = offer(name, one.train, one.classes, reading.task, preparation)
        check_offer(mine)
        offers.append(mine)
        found.append(positives(one))
        tested += len(one.parts[2])
    files.check_party_names(list(sources))
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
