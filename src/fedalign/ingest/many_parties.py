"""A folder with many parties: every file is read twice, and no more than one party's rows are in memory.

The first reading finds what the parties must agree on, the second prepares the rows and stores them in a temporary
file (`stored_parties`). The result is that of reading all files at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedalign.errors import UserError, printable
from fedalign.ingest.agree import agree, examples, offer
from fedalign.ingest.holding import Divided, check_positives, positives
from fedalign.ingest.reading import Reading
from fedalign.ingest.stored_parties import StoredParties, concatenated
from fedalign.system.memory import require_label_memory
from fedalign.types import Examples, Federation

if TYPE_CHECKING:
    from fedalign.ingest.party_files import Files

MANY = 1000  # parties; the rows of so many are held in memory


def load_many(files: Files, sources: Mapping[str, Path], reading: Reading) -> Federation:
    """The federation of these files, one per party."""

    def read(name: str, path: Path) -> Divided:
        [holding] = files.holdings(name, path, reading)
        return files.divided(holding)

    offers, found, marks, tested = [], [], [], 0
    for name, path in sources.items():
        marks.append(mark(path))
        held = read(name, path)
        offers.append(offer(name, held.train, held.classes, reading.task, files.preparation))
        found.append(positives(held))
        tested += len(held.parts[2])
    files.check_party_names(list(sources))
    agreed, _ = agree(offers, files.preparation)
    offers.clear()
    check_positives(found, agreed, files.min_positives)
    found.clear()
    require_label_memory(tested, len(agreed.label_names))
    parties = StoredParties()

    def tests() -> Iterator[Examples]:
        """Stores the rows of each party; yields those for the test, which all parties are scored on."""
        for (name, path), before in zip(sources.items(), marks, strict=True):
            held = read(name, path)
            if mark(path) != before:
                raise UserError(f"{printable(path.name)} changed while the parties were read; run the command again")
            parts = [examples(part, held.classes, agreed) if len(part) else None for part in held.parts]
            parties.add(name, parts)
            if parts[2] is not None:
                yield parts[2]

    own = concatenated(tests())
    if files.test_file:
        own = examples(files.read_test(reading, agreed.label_names), agreed.label_names, agreed)
    return Federation(agreed.task, agreed.label_names, parties, agreed.inputs, own)


def mark(path: Path) -> tuple[int, int]:
    """Changes when the file changes."""
    try:
        state = path.stat()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    return state.st_size, state.st_mtime_ns
