"""fedalign receipt: check what a party's record of its messages is worth, and show its identity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedalign.cli._json import Code, answer, failed
from fedalign.errors import UserError
from fedalign.runs.display import note, output, suggest

ORDER = 14
group = typer.Typer(help="Check a party's record of its messages, and show its identity.", no_args_is_help=True)


@group.command(name="verify")
def verify_command(
    path: Annotated[Path, typer.Argument(metavar="FOLDER|FILE", help="receipt.jsonl, or the folder that holds it.")],
    key: Annotated[str, typer.Option(help="The party's public key, from fedalign receipt identity.")] = "",
    noted: Annotated[str, typer.Option(help="A digest noted earlier that must still be in the record.")] = "",
) -> None:
    """Find lines of a record that were removed, changed or moved."""
    from fedalign.privacy.receipts import verify

    public = _key(key) if key else None
    found = verify(path, public, noted)
    answer({"lines": found.lines, "signed": found.signed, "newest": found.newest, "problems": list(found.problems)})
    if found.unchained:
        note(f"{found.unchained} lines of an earlier version have no links; they are covered as a whole")
    if public is None:
        note("signatures were not checked; add --key with the party's public key, obtained from the party itself")
    for problem in found.problems:
        output.print(escape(problem), soft_wrap=True)
    if found.problems:
        failed(Code.FAILED, found.problems[0])
        raise typer.Exit(1)
    output.print(f"{found.lines} lines, {found.signed} of them signed: nothing was removed, changed or moved")
    output.print(f"newest digest: {found.newest}", soft_wrap=True)
    suggest(f"fedalign receipt verify {path} --noted {found.newest[:12]}...   (later, to notice missing lines)")


@group.command(name="identity")
def identity_command(
    folder: Annotated[
        Path, typer.Argument(help="The party's memory folder, or a new one; a key is made if it has none.")
    ],
) -> None:
    """Show a party's public key, to be given to other parties by other means than the server."""
    from fedalign.privacy.secure_sums.identity import Identity

    if not folder.is_dir() and not folder.absolute().parent.is_dir():
        raise UserError(f"there is no folder {folder.parent}; give the party's memory folder, or a new one")
    public = Identity.of_folder(folder).public.hex()
    answer({"public_key": public})
    output.print(public)


def _key(text: str) -> bytes:
    try:
        found = bytes.fromhex(text.strip())
    except ValueError:
        found = b""
    if len(found) != 32:
        raise UserError("--key is not a public key of 64 hexadecimal digits; see fedalign receipt identity")
    return found
