"""fedalign party: a party's side of a deployment, with one command."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedalign.cli._default_command import StartGroup
from fedalign.cli._json import answer
from fedalign.deploy.formats import PAGE, Format
from fedalign.errors import UserError
from fedalign.runs.display import output, screen, suggest, typed

if TYPE_CHECKING:
    from fedalign.deploy.approval import Leaving
    from fedalign.deploy.party import PartyFolder
    from fedalign.privacy.secure_sums.identity import Identity

ORDER = 12
group = typer.Typer(
    cls=StartGroup,
    help="Take part in a deployment: `fedalign party FOLDER` starts, watches and stops everything a party needs.",
    no_args_is_help=True,
)
Folder = Annotated[Path, typer.Argument(help="A folder that fedalign party join wrote.")]
Approve = Annotated[str, typer.Option(metavar="DIGEST", help="Approve what leaves, without a question.")]
Where = Annotated[str, typer.Option(metavar="HOST:PORT", help=PAGE)]
Lines = Annotated[Format, typer.Option(help="Lines for people or for programs.")]


@group.callback()
def party() -> None:
    pass


@group.command()
def join(
    invitation: Annotated[Path, typer.Argument(help="The server's invitation.json.")],
    data: Annotated[Path, typer.Argument(help="This party's file; its rows never leave.")],
    name: Annotated[str, typer.Option(help="The party's name; default the file's.")] = "",
    folder: Annotated[Path | None, typer.Option(help="A new folder for key, logs and receipts; default NAME.")] = None,
    fingerprint: Annotated[str, typer.Option(help="Of the invitation, as the server's operators told you.")] = "",
    identity: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Of fedalign receipt identity, if the run adds masks.")
    ] = None,
    approve: Approve = "",
    start: Annotated[bool, typer.Option("--start", help="Take part at once; waits until the key is admitted.")] = False,
    log_format: Lines = Format.TEXT,
    page: Where = "127.0.0.1:0",
) -> None:
    """Join a run: show what will leave, make this party's private key here, print its public key."""
    from fedalign.deploy.approval import leaving
    from fedalign.deploy.invitation import read_invitation
    from fedalign.deploy.party import PartyFolder
    from fedalign.flower.installed import require_flower
    from fedalign.system.files import stem

    require_flower()
    found = read_invitation(invitation, fingerprint)
    own = name or stem(data)
    if own not in found.parties:
        raise UserError(
            f"{own!a} is not a party of this invitation ({', '.join(map(ascii, found.parties))}); give --name"
        )
    place = folder or Path(own)
    if place.exists():
        raise UserError(f"{place} exists already; start it with fedalign party {place}, or give another --folder")
    if not data.exists():
        raise UserError(f"there is no file {data}; check the path")
    who = identity_of(found.config, own, identity)
    with screen.status("reading"):
        consent = leaving(data, found.config, own)
    if consent.refused:
        raise UserError(consent.refused)
    output.print(f"invitation of {escape(found.address)}, fingerprint {found.fingerprint}", soft_wrap=True)
    agree(consent, approve)
    made = PartyFolder.create(place, found, own, data, consent.digest, who)
    answer({"folder": place, "party": own, "key": made.key, "approved": consent.digest})
    output.print(f"this party's public key: [bold]{made.key}[/]", soft_wrap=True)
    output.print("the server's operators admit it with:", soft_wrap=True)
    output.print(f"  {escape(typed('fedalign server admit KIT', own, made.key))}", soft_wrap=True)
    sys.stdout.flush()
    if start:
        run(made, log_format, page, consent)
    else:
        suggest("fedalign party", place)


def identity_of(config: str, name: str, folder: Path | None) -> Identity | None:
    """The identity in a folder, if the run needs one and the list in its configuration has this one for the party."""
    asked = tomllib.loads(config).get("privacy", {})
    if not asked.get("secure_sums"):
        return None
    from fedalign.privacy.secure_sums.identity import FILE, Identity

    if folder is None or not (folder / FILE).is_file():
        raise UserError(
            "this run adds masks: give --identity FOLDER, in which fedalign receipt identity made this party's key"
        )
    found = Identity.of_folder(folder)
    found.check_listed(asked.get("identities", {}), name)
    return found


def agree(consent: Leaving, approve: str) -> None:
    """Shows what will leave, and refuses to go further without approval."""
    output.print(f"[bold]What leaves {escape(consent.party)}[/]  (digest {consent.digest})", soft_wrap=True)
    for line in consent.lines:
        output.print(f"  {escape(line)}", soft_wrap=True)
    if approve and approve != consent.digest:
        raise UserError(
            f"--approve {approve[:40]} was given, and what would leave is {consent.digest}; read the list above and "
            f"approve that"
        )
    if approve:
        return
    output.file.flush()
    screen.print("approve? yes or no: ", end="")
    given = sys.stdin.readline()
    if not sys.stdin.isatty():
        screen.print()
    if given.strip().lower() not in ("y", "yes"):
        raise UserError(f"not approved, and nothing was written; approve with --approve {consent.digest}")


@group.command()
def start(folder: Folder, approve: Approve = "", log_format: Lines = Format.TEXT, page: Where = "127.0.0.1:0") -> None:
    """Connect to the server and take part until stopped; connects again when the server was away."""
    from fedalign.deploy.party import PartyFolder
    from fedalign.flower.installed import require_flower

    require_flower()
    own = PartyFolder.read(folder)
    found = own.leaving()
    if approve:
        agree(found, approve)
        own = replace(own, approved=approve)
        own.write()
    run(own, log_format, page, found)


def run(own: PartyFolder, log_format: Format, page: str, found: Leaving) -> None:
    from fedalign.deploy.logs import Log
    from fedalign.deploy.party import take_part

    (own.folder / "logs").mkdir(mode=0o700, exist_ok=True)
    take_part(own, Log(own.folder / "logs" / "party.log", log_format), page, found)


@group.command()
def show(folder: Folder) -> None:
    """Show what leaves this party, and the digest to approve it with."""
    from fedalign.deploy.party import PartyFolder

    own = PartyFolder.read(folder)
    consent = own.leaving()
    answer({"approved": own.approved, "digest": consent.digest, **consent.table})
    output.print(f"[bold]What leaves {escape(own.name)}[/]  (digest {consent.digest})", soft_wrap=True)
    for line in consent.lines:
        output.print(f"  {escape(line)}", soft_wrap=True)
    state = "approved" if own.approved == consent.digest else "not approved"
    output.print(f"{state}; public key {own.key}", soft_wrap=True)
    suggest("fedalign party", folder)
