"""fedalign forget: take a party out of an analytic run, exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedalign.cli._complete import runs
from fedalign.cli._json import answer
from fedalign.errors import UserError
from fedalign.runs.display import note, output, screen, suggest

ORDER = 14


def command(
    run: Annotated[Path, typer.Argument(help="The folder of a finished analytic run.", autocompletion=runs)],
    party: Annotated[str, typer.Option(help="The party that leaves.")],
) -> None:
    """Take a party out of an analytic run: its sums are subtracted and the model is solved again."""
    from fedalign.runs.experiment import RunCallbacks
    from fedalign.runs.forget import forget

    with screen.status("solving without the party"):
        found = forget(run, party, RunCallbacks(on_warning=note))
    if not found.proven:
        raise UserError(
            f"the model without {party!r} differs from one trained without it ({found.digest[:12]} and "
            f"{found.trained[:12]}); the data of the run have changed, so train it again"
        )
    answer({"party": party, "sha256": found.digest, "result": found.result})
    last = found.result.get("last")
    if last is not None:
        output.print(f"without {party}: F1 {100 * last['f1']:.2f}, accuracy {100 * last['accuracy']:.2f}")
    output.print(f"weights: SHA-256 {found.digest}", soft_wrap=True)
    output.print("the same as trained without the party from the start, with the same feature map")
    suggest("fedalign report", run)
