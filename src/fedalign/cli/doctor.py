"""fedalign doctor: whether this machine is ready, and what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import time
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from fedalign.cli._json import Code, answer, failed
from fedalign.runs.display import output, screen, suggest

ORDER = 16
PACKAGES = (
    "torch",
    "numpy",
    "polars",
    "scikit-learn",
    "scipy",
    "pydantic",
    "safetensors",
    "typer",
    "rich",
    "matplotlib",
)
NOT_FOR_USERS = ("dev", "docs", "all")  # extras that are not listed
REQUIREMENT = re.compile(r"^([\w.-]+)(?:\[[^\]]*\])?\s*([^;]*);.*extra == ['\"]([\w-]+)['\"]")
LITTLE = 2e9  # bytes of free disk from which a note is due


def command() -> None:
    """Show versions, device, threads, missing extras and free disk, and train a tiny model as a self-test."""
    found: dict[str, Any] = {
        "versions": versions(),
        "device": device(),
        "threads": threads(),
        "extras": extras(),
        "disk": disk(),
        "telemetry": telemetry(),
    }
    with screen.status("training a tiny model"):
        found["self_test"] = self_test()
    answer(found)
    print_found(found)
    if not found["self_test"]["ok"]:
        failed(Code.FAILED, f"the self-test failed: {found['self_test']['message']}; install fedalign again")
        raise typer.Exit(1)
    suggest("fedalign run synthetic")


def versions() -> dict[str, str]:
    """Versions of this package, of Python and of the packages it needs."""
    import fedalign

    found = {"fedalign": fedalign.__version__, "python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        found[name] = installed(name) or "missing"
    return found


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def device() -> dict[str, Any]:
    """Where a run trains."""
    from fedalign.system.device import present

    for name, about in present().items():
        return {"name": name, "about": about}
    return {"name": "cpu", "about": platform.processor() or platform.machine()}


def threads() -> dict[str, int]:
    import torch

    from fedalign.system.cores import cores

    return {"cores": cores(), "torch": torch.get_num_threads()}


def extras() -> dict[str, dict[str, Any]]:
    """For each extra the packages that are missing, and the line that installs them."""
    wanted: dict[str, list[str]] = {}
    for line in importlib.metadata.requires("fedalign") or []:
        match = REQUIREMENT.match(line)
        if match and match[3] not in NOT_FOR_USERS:
            wanted.setdefault(match[3], []).append(match[1])
    found = {}
    for extra, packages in sorted(wanted.items()):
        missing = [name for name in packages if installed(name) is None]
        found[extra] = {
            "installed": not missing,
            "missing": missing,
            "install": f"pip install 'fedalign[{extra}]'" if missing else "",
        }
    return found


def disk() -> dict[str, dict[str, Any]]:
    """Free bytes where runs and data are stored."""
    from fedalign.data.downloads import data_folder

    found = {}
    for name, folder in (("runs", Path.cwd()), ("data", data_folder())):
        there = next(place for place in (folder, *folder.parents) if place.exists())
        free = shutil.disk_usage(there).free
        found[name] = {
            "folder": folder,
            "free_bytes": free,
            "writable": os.access(there, os.W_OK),
            "little": free < LITTLE,
        }
    return found


def telemetry() -> dict[str, str]:
    """What the packages that could report usage do here."""
    flower = os.environ.get("FLWR_TELEMETRY_ENABLED", "").lower()
    return {
        "fedalign": "none",
        "flower": "on, because FLWR_TELEMETRY_ENABLED is set" if flower in ("1", "true") else "off",
        "mlflow": "off",
    }


def self_test() -> dict[str, Any]:
    """Trains on three clouds of points at two parties, and asks for the class of each centre. Loading the packages that
    this needs is timed apart."""
    began = time.perf_counter()
    import numpy as np

    import fedalign.runs.experiment  # noqa: F401  (train would load it later)
    from fedalign.api import Federation, train

    loaded = time.perf_counter() - began
    began = time.perf_counter()
    centres, names = 9.0 * np.eye(3), ["red", "green", "blue"]
    rng = np.random.default_rng(0)

    def party(*classes: int) -> tuple[np.ndarray, list[str]]:
        y = np.repeat(classes, 20)
        return centres[y] + rng.normal(size=(len(y), 3)), [names[c] for c in y]

    try:
        data = Federation.from_arrays({"one": party(0, 1), "two": party(1, 2)}, test=(centres, names))
        small = {"encoder.name": "random_features", "encoder.features": 40}
        answers = train(data, seed=1, progress=False, settings=small).predict(centres)
        message = "" if answers == names else f"expected {names}, got {answers}"
    except Exception as error:  # whatever is wrong here is what the user wants to know
        message = f"{type(error).__name__}: {error}"
    seconds = round(time.perf_counter() - began, 2)
    return {"ok": not message, "seconds": seconds, "loading_seconds": round(loaded, 2), "message": message}


def print_found(found: dict[str, Any]) -> None:
    """Prints the findings, one topic per line."""
    versions = dict(found["versions"])
    output.print(f"fedalign {versions.pop('fedalign')}, Python {versions.pop('python')}, {versions.pop('system')}")
    output.print(", ".join(f"{name} {version}" for name, version in versions.items()), soft_wrap=True)
    threads = found["threads"]
    where = f"{found['device']['name']} ({found['device']['about']})"
    output.print(f"device: {escape(where)}, {threads['cores']} cores, {threads['torch']} threads", soft_wrap=True)
    for name, extra in found["extras"].items():
        about = "installed" if extra["installed"] else f"missing {', '.join(extra['missing'])}; {extra['install']}"
        output.print(f"extra {name}: {escape(about)}", soft_wrap=True)
    for name, place in found["disk"].items():
        more = "" if place["writable"] else ", not writable"
        more += ", which is little" if place["little"] else ""
        free = place["free_bytes"] / 1e9
        output.print(f"disk for {name}: {free:,.1f} GB free in {escape(str(place['folder']))}{more}", soft_wrap=True)
    output.print("telemetry: " + ", ".join(f"{name} {state}" for name, state in found["telemetry"].items()))
    test = found["self_test"]
    took = f"passed in {test['seconds']:.1f} s; loading the packages took {test.get('loading_seconds', 0.0):.1f} s"
    state = took if test["ok"] else f"[bold red]failed[/]: {escape(test['message'])}"
    output.print(f"self-test: {state}", soft_wrap=True)
