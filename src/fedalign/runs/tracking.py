"""Trackers, off by default: TensorBoard event files and MLflow. Neither sends telemetry.

A tracker receives rounds through callbacks. If it fails, a note is shown once and the run continues.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedalign.errors import UserError, nearest

if TYPE_CHECKING:
    from fedalign.config import Config
    from fedalign.learning.rounds import Plan, Round
    from fedalign.runs.experiment import RunCallbacks

PACKAGES = {"tensorboard": ("tensorboardX", "track"), "mlflow": ("mlflow", "mlflow")}  # name: (module, extra)


class Tracker(Protocol):
    """Receives the numbers of each round."""

    def scalars(self, number: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def named(text: str) -> list[str]:
    """The trackers of a comma-separated list; refuses one whose package is missing before a run starts."""
    names = [word.strip() for word in text.split(",") if word.strip()]
    for name in names:
        if name not in PACKAGES:
            raise UserError(f"unknown tracker {name!r}{nearest(name, PACKAGES)}")
        module, extra = PACKAGES[name]
        if importlib.util.find_spec(module) is None:
            raise UserError(f"tracking with {name} needs a package; install it with pip install 'fedalign[{extra}]'")
    return names


class TensorBoard:
    """Event files in RUN/tensorboard; rounds after `done` replace those of an interrupted run."""

    def __init__(self, folder: Path, config: Config, done: int) -> None:
        from tensorboardX import SummaryWriter

        self.writer = SummaryWriter(logdir=str(folder / "tensorboard"), purge_step=done + 1 if done else None)

    def scalars(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, number)

    def close(self) -> None:
        self.writer.close()


class MLflow:
    """A run on the server that MLFLOW_TRACKING_URI names, else in RUN/mlruns."""

    def __init__(self, folder: Path, config: Config, done: int) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny has no database
            address = (folder / "mlruns").resolve().as_uri()
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri=address)
        found = self.client.get_experiment_by_name("fedalign")
        where = self.client.create_experiment("fedalign") if found is None else found.experiment_id
        self.run = self.client.create_run(where, run_name=f"{config.name} {config.algorithm.name} {config.seed}")
        for key, value in _flat(config.model_dump(mode="json", exclude_none=True)).items():
            self.client.log_param(self.run.info.run_id, key, str(value)[:500])

    def scalars(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.client.log_metric(self.run.info.run_id, name, value, step=number)

    def close(self) -> None:
        self.client.set_terminated(self.run.info.run_id)


KINDS: dict[str, Callable[[Path, Config, int], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


@contextmanager
def tracked(
    callbacks: RunCallbacks, names: Sequence[str], folder: Path, config: Config, warn: Callable[[str], None]
) -> Iterator[RunCallbacks]:
    """The callbacks extended by these trackers."""
    open_ones: dict[str, Tracker] = {}
    labels: list[str] = []

    def safely(name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            open_ones.pop(name, None)
            warn(f"tracking with {name} stopped ({type(error).__name__}: {error}); the run continues")

    def start(plan: Plan, done: int) -> None:
        callbacks.on_start(plan, done)
        labels.extend(plan.federation.label_names)
        for name in names:
            safely(name, lambda name=name: open_ones.update({name: KINDS[name](folder, config, done)}))  # type: ignore[misc]

    def after_round(now: Round, seconds: float) -> None:
        callbacks.on_round(now, seconds)
        if open_ones:
            values = numbers(now.record, labels) | {"seconds": seconds}
            for name, tracker in list(open_ones.items()):
                safely(name, lambda tracker=tracker: tracker.scalars(now.number, values))  # type: ignore[misc]

    try:
        yield replace(callbacks, on_start=start, on_round=after_round) if names else callbacks
    finally:
        for name, tracker in list(open_ones.items()):
            safely(name, tracker.close)


def numbers(record: Mapping[str, Any], labels: Sequence[str]) -> dict[str, float]:
    """A round's numbers under names that every tracker accepts.

    A class is named by its number and the plain characters of its name, because a name may hold anything.
    """
    found = {k: float(v) for k, v in record.items() if k != "round" and isinstance(v, int | float)}
    for c, value in enumerate(record.get("class_f1") or []):
        if value is not None:
            plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", labels[c] if c < len(labels) else "")[:40].strip("_")
            found[f"class_f1/{c:03d}_{plain}"] = float(value)
    return found


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
