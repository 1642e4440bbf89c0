"""fedalign serve: answers requests with a trained model."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedalign.cli._json import answer
from fedalign.errors import UserError
from fedalign.runs.display import output

ORDER = 15
NEEDS = ("fastapi", "uvicorn", "python_multipart")


def command(
    run: Annotated[Path, typer.Argument(help="A run's folder, or one written by export.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; one beyond this machine needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that clients send; made if it does not exist.")
    ] = None,
    megabytes: Annotated[float, typer.Option(min=0.001, max=10_000, help="The largest body of a request.")] = 10.0,
    rows: Annotated[int, typer.Option(min=1, help="The most rows of a request.")] = 10_000,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="The most time for a request.")] = 30.0,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Allow the model to run its own encoder's code.")
    ] = False,
) -> None:
    """Serve a model: POST /predict, a page to try it, and /docs.

    Requests are JSON or files: CSV, TSV, JSONL or Parquet. Only this machine
    can reach the server unless --host names another address. The token is
    read from --token-file or from the variable FEDALIGN_TOKEN.
    """
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise UserError(f"serve needs {', '.join(missing)}; install them with pip install 'fedalign[serve]'")
    from fedalign.inference.model import Model
    from fedalign.serve import listen
    from fedalign.serve.app import create_app
    from fedalign.serve.limits import Limits

    model = Model.load(run, trust_code)
    token = listen.find_token(host, token_file)
    listening = listen.bound(host, port)
    app = create_app(model, Limits(megabytes, rows, seconds), token, listen.is_loopback(host))
    where = listen.address(listening)

    answer({"address": where, "classes": len(model.label_names)})

    def ready() -> None:
        classes = f"{len(model.label_names)} classes, {model.task}-label {model.inputs.kind}"
        output.print(f"serving {escape(str(run))} ({classes}); Ctrl-C stops", soft_wrap=True)
        output.print(f"page: {where}/   reference: {where}/docs", soft_wrap=True)
        output.print(
            f"next:  [bold]{escape(example(where, model.inputs.new_file, token, token_file))}[/]", soft_wrap=True
        )
        output.file.flush()

    listen.serve(app, listening, ready)


def example(where: str, file: str, token: str | None, token_file: Path | None) -> str:
    """A command that sends a file to the server."""
    sent = ""
    if token is not None:
        value = "$FEDALIGN_TOKEN" if token_file is None else f"$(cat {shlex.quote(str(token_file))})"
        sent = f'-H "Authorization: Bearer {value}" '
    return f"curl {sent}-F file=@{file} {where}/predict"
