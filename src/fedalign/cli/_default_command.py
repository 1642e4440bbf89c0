"""A group of commands one of which may be left out: `fedalign server KIT` is `fedalign server start KIT`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

HELP = ("-h", "--help")


class StartGroup(TyperGroup):
    """Inserts `start` before arguments that begin with none of the group's commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in HELP:
            args = ["start", *args]
        return super().parse_args(ctx, args)
