"""What leaves a party, computed in a process of its own, so that a supervisor does not hold torch for days."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedalign.errors import UserError


@dataclass(frozen=True)
class Leaving:
    """What a party approves: the digest, what a person reads, and the same for a program."""

    party: str
    digest: str
    lines: list[str]
    table: dict[str, Any]
    refused: str = ""  # why nothing may leave any more


def leaving(data: Path, config: str, party: str) -> Leaving:
    """Reads the party's file and builds its messages; `config` is the run's configuration as text."""
    asked = json.dumps({"data": str(data), "config": config, "party": party})
    done = subprocess.run(
        [sys.executable, "-m", "fedalign.deploy.launch", "consent"],
        input=asked.encode(),
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    try:
        found = json.loads(done.stdout.decode().splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise UserError(
            f"what would leave {party!a} could not be computed (exit code {done.returncode}); "
            f"run fedalign check {data} --what-leaves with the run's configuration"
        ) from error
    if "error" in found:
        raise UserError(found["error"])
    return Leaving(**found)


def answer() -> None:
    """The process that computes it: reads one object from its input and writes one to its output."""
    asked = json.loads(sys.stdin.read())
    try:
        from fedalign import config as configs
        from fedalign import registry
        from fedalign.deploy.consent import consent_for

        table = tomllib.loads(asked["config"])
        program = registry.first_program(table)
        if program is not None:  # the configuration is the server's, and reading it would run the program
            raise UserError(
                f"the run's configuration names the {program}, a program of its own; a party runs nothing but the "
                "installed package, so ask the server's operators for another configuration"
            )
        config = configs.from_table(table, where="the run's configuration")
        made = consent_for(Path(asked["data"]), config, asked["party"])
        found: dict[str, Any] = asdict(
            Leaving(made.party, made.digest, made.lines(), made.table(), made.leaving.refused)
        )
    except UserError as error:
        found = {"error": str(error)}
    sys.stdout.write("\n" + json.dumps(found, default=str) + "\n")
