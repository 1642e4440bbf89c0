"""fedalign export: a folder with everything that prediction needs, and an ONNX file if wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedalign.cli._complete import runs
from fedalign.cli._json import answer
from fedalign.errors import UserError
from fedalign.runs.display import output, screen, suggest

ORDER = 13


def command(
    run: Annotated[Path, typer.Argument(help="A run's folder.", autocompletion=runs)],
    to: Annotated[str, typer.Option(help="folder, or onnx to add a model.onnx (extra onnx).")] = "folder",
    out: Annotated[Path | None, typer.Option(help="The new folder; default RUN-export.")] = None,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Allow the model to run its own encoder's code.")
    ] = False,
) -> None:
    """Write the model, its labels and a model card into one folder."""
    if to not in ("folder", "onnx"):
        raise UserError(f"--to must be folder or onnx, not {to!r}")
    from fedalign.inference.export import folder
    from fedalign.inference.model import Model

    model = Model.load(run, trust_code)
    target = out or run.with_name(f"{run.resolve().name}-export")
    with screen.status("writing"):
        difference = folder.write(model, run, target, onnx=to == "onnx")
    for path in sorted(target.iterdir()):
        output.print(f"{path.stat().st_size:>12,}  {escape(str(path))}", soft_wrap=True)
    sizes = {path.name: path.stat().st_size for path in sorted(target.iterdir())}
    answer({"folder": target, "bytes": sizes, "onnx_difference": difference})
    if difference is not None:
        output.print(f"checked with onnxruntime: logits differ from the model's by at most {difference:.1e}")
    suggest("fedalign predict", target, model.inputs.new_file)
