"""Files with one row per step: the steps of a recording become one row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fedalign.errors import UserError, quoted
from fedalign.ingest.annotation import Labels
from fedalign.ingest.formats import Problem, Report
from fedalign.ingest.records import Records, joined
from fedalign.inputs import Ragged


def gathered(batches: Iterable[Records], report: Report, id_column: str, time_column: str) -> Iterator[Records]:
    """Whole recordings, from batches of steps. The last recording of a batch waits for the next batch."""
    done: set[str] = set()
    waiting: list[Records] = []
    for part in batches:
        steps = joined([*waiting, part])
        new = np.flatnonzero(_begins(steps))
        last = int(new[-1]) if len(new) else 0
        waiting = [steps.take(np.arange(last, len(steps)))]
        if last:
            yield _recordings(steps.take(np.arange(last)), report, id_column, time_column, done)
    for steps in waiting:
        yield _recordings(steps, report, id_column, time_column, done)


def _begins(steps: Records) -> np.ndarray:
    """(n,) bool: the steps with which a recording begins."""
    assert steps.ids is not None
    other = steps.ids[1:] != steps.ids[:-1]
    if steps.clients is not None:
        other = other | (steps.clients[1:] != steps.clients[:-1])
    return np.concatenate([np.ones(min(len(steps), 1), dtype=bool), np.asarray(other, dtype=bool)])


def _recordings(steps: Records, report: Report, id_column: str, time_column: str, done: set[str]) -> Records:
    """Whole recordings as rows. The labels of a recording are those of its steps, which must not contradict."""
    assert isinstance(steps.x, np.ndarray)
    assert steps.ids is not None
    starts = np.flatnonzero(_begins(steps))
    for start in starts.tolist():
        key = f"{steps.ids[start]}\n{'' if steps.clients is None else steps.clients[start]}"
        if key in done:
            message = (
                f"recording {quoted(steps.ids[start])} has steps after another began; sort the file by this column"
            )
            raise UserError(str(Problem(steps.file, message, int(steps.numbers[start]), id_column)))
        done.add(key)
    bounds = np.array([*starts, len(steps)], dtype=np.int64)
    values = steps.x
    if steps.times is not None:
        for row in np.flatnonzero(np.isnan(steps.times)).tolist():
            report(Problem(steps.file, "has no time; fill it in", int(steps.numbers[row]), time_column))
        values = values[np.lexsort((steps.times, np.repeat(starts, np.diff(bounds))))]
    labels = None if steps.labels is None else _agreed_labels(steps, bounds)
    clients = None if steps.clients is None else steps.clients[starts]
    x = Ragged(values, bounds).trimmed()
    kept = None if steps.kept is None else steps.kept[starts]
    return Records(steps.file, steps.kind, steps.numbers[starts], x, steps.columns, labels, clients, kept=kept)


def _agreed_labels(steps: Records, bounds: np.ndarray) -> Labels:
    """One row of labels per recording: each of its steps says the same or nothing."""
    labels = steps.labels
    assert labels is not None
    starts = bounds[:-1]
    yes = np.logical_or.reduceat(labels.yes, starts)  # (n, c)
    no = np.logical_or.reduceat(labels.known & ~labels.yes, starts)
    for row, name in np.argwhere(yes & no).tolist():
        steps_of_it = np.arange(bounds[row], bounds[row + 1])
        known = steps_of_it[labels.known[steps_of_it, name]]
        other = known[labels.yes[known, name] != labels.yes[known[0], name]][0]  # the first that contradicts
        assert steps.ids is not None
        which = f"recording {quoted(steps.ids[other])} is and is not {quoted(labels.names[name])}"
        message = f"{which}; give all its rows the same label"
        raise UserError(str(Problem(steps.file, message, int(steps.numbers[other]))))
    return Labels(labels.names, yes, yes | no, np.logical_or.reduceat(labels.fully_annotated, starts))
