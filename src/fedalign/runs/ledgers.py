"""Where the privacy ledger of each party of a run is."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from fedalign import registry
from fedalign.config import Config
from fedalign.privacy.ledger import ENDING
from fedalign.system.files import stem
from fedalign.types import Federation


def ledgers(config: Config, data: Federation) -> tuple[Path | None, ...]:
    """One path per party: in the folder `privacy.ledger`, else beside the party's file. Public data need no ledger."""
    return tuple(_path(config, party.name) for party in data.parties)


def _path(config: Config, party: str) -> Path | None:
    if config.privacy.ledger:
        return in_folder(config.privacy.ledger, party)
    if config.dataset.name != "files":
        return None
    sources = registry.build("datasets", "files", config.dataset.options).sources()
    if party in sources:
        return beside(sources[party])
    first = next(iter(sources.values()))  # one file with a column of parties
    return first.with_name(f"{stem(first)}.{quote(party, safe=' ')}{ENDING}")


def beside(path: Path) -> Path:
    """The ledger of a party's file."""
    return path.with_name(f"{stem(path)}{ENDING}")


def in_folder(folder: str, party: str) -> Path:
    """The ledger of a party in a folder of ledgers."""
    return Path(folder).expanduser() / f"{quote(party, safe=' ')}{ENDING}"
