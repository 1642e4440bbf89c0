"""fedalign datasets: what there is, what is here, and how to get the rest."""

from __future__ import annotations

import typer
from rich.markup import escape

from fedalign.console import output, suggest

ORDER = 5
group = typer.Typer(invoke_without_command=True, help="List the data sets, which are here, and how to get the others.")


@group.callback()
def table(context: typer.Context) -> None:
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table

    from fedalign import rooms
    from fedalign.datafolder import data_folder

    folder = data_folder()
    shown = Table(title=f"data sets (folder {escape(str(folder))})", title_justify="left")
    for column in ("name", "what", "task", "size", "here", "licence", "how to get it"):
        shown.add_column(column, overflow="fold")
    for name in rooms.names("datasets"):
        kind = rooms.find("datasets", name)
        about = kind.about
        here = "[green]yes[/]" if kind().present(folder) else "no"
        shown.add_row(name, about.title, about.task, about.size, here, about.licence, about.how)
    output.print(shown)
    suggest("fedalign run r8-8")
