"""fedalign server: the server's side of a deployment, with one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedalign.cli._default_command import StartGroup
from fedalign.cli._json import answer
from fedalign.deploy.formats import PAGE, Format
from fedalign.runs.display import output, suggest

ORDER = 11
group = typer.Typer(
    cls=StartGroup,
    help="Run the server of a deployment: `fedalign server KIT` starts, watches and stops everything it needs.",
    no_args_is_help=True,
)
Kit = Annotated[Path, typer.Argument(help="A folder that fedalign deploy init wrote.")]


@group.callback()
def server() -> None:
    pass


@group.command()
def start(
    kit: Kit,
    out: Annotated[Path | None, typer.Option(help="The run's folder; default KIT/run.")] = None,
    log_format: Annotated[Format, typer.Option(help="Lines for people or for programs.")] = Format.TEXT,
    page: Annotated[str, typer.Option(metavar="HOST:PORT", help=PAGE)] = "127.0.0.1:0",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen, if not at the address that the parties use.")
    ] = "",
    on_disk: Annotated[
        bool, typer.Option("--on-disk", help="Keep the SuperLink's messages in KIT/state.db instead of memory: slower.")
    ] = False,
) -> None:
    """Wait for the parties, run to the end, and stop. The same command resumes a run."""
    from fedalign.deploy.kit import ServerKit
    from fedalign.deploy.logs import Log
    from fedalign.deploy.server import serve
    from fedalign.flower.installed import require_flower

    require_flower()
    found = ServerKit.read(kit)
    folder = out or kit / "run"
    (kit / "logs").mkdir(mode=0o700, exist_ok=True)
    result = serve(found, Log(kit / "logs" / "server.log", log_format), folder, page, listen, not on_disk)
    if result is None:
        raise typer.Exit(1)
    answer({"run": folder, "rounds": result.get("rounds")})
    suggest("fedalign report", folder)


@group.command()
def admit(
    kit: Kit,
    name: Annotated[str, typer.Argument(help="The party's name.")],
    key: Annotated[str, typer.Argument(help="The key that fedalign party join printed.")],
    new: Annotated[bool, typer.Option("--new", help="The party was not named when the kit was made.")] = False,
) -> None:
    """Admit a party by its public key. A running server notices at once."""
    from fedalign.deploy.kit import ServerKit

    found = ServerKit.read(kit)
    found.admit(name, key, new)
    admitted = found.admitted()
    missing = sorted(set(found.parties) - admitted.keys())
    answer({"admitted": sorted(admitted), "missing": missing})
    output.print(f"admitted {escape(name)}; " + (f"still missing: {escape(', '.join(missing))}" if missing else "all"))
    suggest("fedalign server", kit)


@group.command()
def drop(kit: Kit, name: Annotated[str, typer.Argument(help="The party's name.")]) -> None:
    """Remove a party's key. A run that is resumed no longer waits for this party."""
    from fedalign.deploy.kit import ServerKit

    found = ServerKit.read(kit)
    found.drop(name)
    answer({"admitted": sorted(found.admitted())})
    output.print(f"dropped {escape(name)}")
    suggest("fedalign server", kit)


@group.command()
def renew(
    kit: Kit,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the new certificate is valid.")] = 30,
) -> None:
    """Renew the server's certificate. The parties keep their folders; restart the server to use it."""
    from fedalign.deploy.kit import ServerKit

    until = ServerKit.read(kit).renew(days)
    answer({"certificate_valid_until": until.isoformat()})
    output.print(f"the certificate is valid until {until:%Y-%m-%d}; restart the server", soft_wrap=True)
    suggest("fedalign server", kit)


@group.command()
def invite(kit: Kit) -> None:
    """Write a new invitation.json, valid for 30 days."""
    from fedalign.deploy.kit import ServerKit

    found = ServerKit.read(kit).invite()
    answer({"invitation": kit / "invitation.json", "fingerprint": found.fingerprint})
    output.print(f"wrote {escape(str(kit / 'invitation.json'))}, fingerprint {found.fingerprint}", soft_wrap=True)
    suggest("fedalign server", kit)
