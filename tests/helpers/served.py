"""A model served by a real process, and the requests of a test."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from fedalign import config
from fedalign.runs import experiment
from helpers.commands import ROOT, background


@cache
def analytic_run(name: str) -> Path:
    """A finished analytic run on an example folder."""
    out = Path(mkdtemp(prefix="fedalign-served-")) / name
    small = ["algorithm.name=analytic", "algorithm.penalty=0.01", "algorithm.omega=0.1"]
    experiment.run(config.load(str(ROOT / "examples" / name / "fedalign.toml"), small), out)
    return out


@contextmanager
def serving(run: Path, *options: str) -> Iterator[str]:
    """The address of a running server."""
    process = background("serve", run, "--port", "0", *options)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r"page: (http://[^/]+)/", line)
            if found:
                yield found.group(1)
                return
        raise AssertionError(process.stderr.read() if process.stderr else "")
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def asked(address: str, body: bytes | None = None, kind: str = "", **headers: str) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    request = urllib.request.Request(address, data=body, headers={"Content-Type": kind, **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())
