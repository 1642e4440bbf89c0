"""fedalign deploy: set up a run with parties on their own machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedalign.cli._json import answer
from fedalign.runs.display import note, output, suggest

ORDER = 10
group = typer.Typer(
    help="Set up a run with parties on their own machines, over TLS, with Flower.", no_args_is_help=True
)


@group.callback()
def deploy() -> None:
    pass


@group.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for configuration, certificates, invitation.")],
    source: Annotated[
        str, typer.Option("--config", metavar="FILE.toml", help="The run's configuration, as for fedalign run.")
    ],
    parties: Annotated[str, typer.Option(help="Names of the parties, separated by commas.")],
    host: Annotated[str, typer.Option(help="Where the server will listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's port.")] = 8000,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one setting.")] = None,
) -> None:
    """Write the server's folder: configuration, trial certificates, an invitation for the parties, the commands."""
    from fedalign import config as configs
    from fedalign.deploy.kit import ServerKit
    from fedalign.errors import UserError
    from fedalign.flower.installed import require_flower
    from fedalign.flower.kit import for_parties

    require_flower()
    names = [name.strip() for name in parties.split(",") if name.strip()]
    if len(names) != len(set(names)) or not names:
        raise UserError("--parties needs different names, for example --parties north,south,east")
    config = configs.load(source, settings or [])
    if config.dataset.name != "files":
        raise UserError(
            f"{source} trains on {config.dataset.name!r}, but a deployment needs files; write a TOML for yours with "
            "fedalign init"
        )
    found = ServerKit.create(folder, for_parties(config), names, host, port)
    answer({"folder": folder, "parties": names, "address": f"{host}:{port}", "fingerprint": found.fingerprint})
    if config.dataset.options.get("test_file"):
        note("test_file stays here: a deployed run is scored on the parties' own rows, a simulation also on that file")
    output.print(f"wrote {escape(str(folder))}; its README.md has all commands", soft_wrap=True)
    invitation = folder / "invitation.json"
    output.print(f"send {escape(str(invitation))} to the parties; fingerprint {found.fingerprint}", soft_wrap=True)
    suggest("fedalign server", folder)


@group.command()
def check(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="On a party's machine: the server's address.")] = "",
    root_certificates: Annotated[Path, typer.Option(help="On a party's machine: the server's ca.crt.")] = Path(
        "certificates/ca.crt"
    ),
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="On the server: the address it will listen on.")
    ] = "",
    party: Annotated[
        Path | None, typer.Option(help="On a party's machine: its folder. Checks address, certificate, key and name.")
    ] = None,
) -> None:
    """Check before a run: versions, the port on the server, or address, certificate, key and name of a party."""
    from fedalign.errors import UserError
    from fedalign.flower import preflight
    from fedalign.flower.installed import require_flower

    if bool(server) + bool(listen) + bool(party) != 1:
        raise UserError(
            "give --party FOLDER or --server HOST:PORT on a party's machine, or --listen HOST:PORT on the server's"
        )
    require_flower()
    if party is not None:
        from fedalign.deploy.party import PartyFolder

        own = PartyFolder.read(party)
        own.check_key()
        until = preflight.can_reach(own.address, party / "ca.crt")
        preflight.can_join(own.address, party / "ca.crt", own.name, own.key)
        answer({"server": own.address, "party": own.name, "certificate_valid_until": until})
        output.print(f"{escape(own.address)} admits this key as {escape(own.name)}", soft_wrap=True)
        suggest("fedalign party", party)
        return
    if listen:
        preflight.can_listen(listen)
        answer({"listen": listen, "free": True})
        output.print(f"{escape(listen)} is free")
        suggest("fedalign server KIT")
        return
    until = preflight.can_reach(server, root_certificates)
    answer({"server": server, "certificate_valid_until": until})
    output.print(f"{escape(server)} answers; its certificate is valid until {escape(until)}", soft_wrap=True)
    suggest("fedalign check FILE --what-leaves --config config.toml")
