"""fedalign labels hash and labels shared: find common names without showing the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedalign.cli._json import answer
from fedalign.errors import UserError, printable
from fedalign.runs.display import output, suggest

Names = Annotated[Path, typer.Argument(help="A text file with one name per line.")]
Key = Annotated[Path, typer.Option(help="The key that all parties have and the server has not.")]


def hash_command(
    names: Names,
    key: Key,
    out: Annotated[Path, typer.Option(help="The digests to write, for the other parties.")] = Path("names.hashed"),
    new_key: Annotated[bool, typer.Option("--new-key", help="Make the key first, to be given to the others.")] = False,
) -> None:
    """Write keyed digests of your label names, which show nothing to whom has no key."""
    from fedalign.labels import hashed
    from fedalign.labels.names import read_names
    from fedalign.system.files import write_atomically

    if out.exists():
        raise UserError(f"{out} exists already; give another name to --out")
    own, _ = read_names(names)
    if new_key:
        hashed.new_key(key)
    write_atomically(out, hashed.digests(own, hashed.read_key(key)))
    answer({"names": len(own), "out": out})
    output.print(f"{len(own)} names: {escape(str(out))}", soft_wrap=True)
    suggest("fedalign labels shared", names, "OTHER.hashed", "--key", key)


def shared_command(
    names: Names,
    others: Annotated[list[Path], typer.Argument(help="The digests of other parties.")],
    key: Key,
) -> None:
    """List those of your names that another party has too."""
    from fedalign.labels import hashed
    from fedalign.labels.names import read_names

    own, _ = read_names(names)
    found = hashed.shared(own, hashed.read_key(key), [hashed.read_digests(path) for path in others])
    answer({"shared": found, "own": len(own)})
    for name in found:
        output.print(escape(printable(name, 256)))
    output.print(f"{len(found)} of {len(own)} names are shared")
