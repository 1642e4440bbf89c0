"""The command line, in this process or in one of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fedalign.cli import main

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["--set", "dataset.rows=200", "--set", "engine.workers=1", "--set", "encoder.dim=16"]


def fedalign(*arguments: str | Path) -> int:
    """Runs the command line in this process and returns its exit code."""
    before = sys.argv
    sys.argv = ["fedalign", *map(str, arguments)]
    try:
        main.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = before
    return 0


def background(*arguments: str | Path, **more: object) -> subprocess.Popen[str]:
    """Starts the command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedalign", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,  # type: ignore[call-overload]
    )
