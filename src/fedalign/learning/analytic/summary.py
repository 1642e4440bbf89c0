"""What a run of analytic learning would send, why a reply is rejected, and what the run chose by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fedalign.errors import UserError
from fedalign.learning.analytic.client import SHARES, TEACHER, TEACHER_SUMS, Stage
from fedalign.learning.analytic.server import reply_spec
from fedalign.learning.analytic.state import SUMS, TAUGHT, Options, doubted, held, stage_of
from fedalign.learning.analytic.sums import ALL, implausible_sums, matrices, reject_statistics
from fedalign.learning.model import DualEncoder
from fedalign.learning.replies import Reason, Rejection
from fedalign.types import Examples, ReplySpec, Server, Update

NUMBERS = ("penalty", "omega", "temperature", "refinements", "first_loss", "last_loss", "first_error", "last_error")


def check_options(clip_updates: float, robust: str) -> None:
    """Refuses options of methods that send weights."""
    if clip_updates:
        raise UserError("algorithm.clip_updates is for methods that send weights; analytic sends sums")
    if robust not in ("off", "auto"):
        raise UserError("algorithm.robust of analytic is 'off' or 'auto': sums are compared, not voted on")


def reply_specs(server: Server, options: Options, data: Examples | None = None) -> dict[str, ReplySpec]:
    """What a client would send over a whole run, by exchange; with `data`, the client with these training rows."""
    found: dict[str, ReplySpec] = {}
    if stage_of(server) is Stage.STATISTICS:
        found["once: statistics of the feature map"] = reply_spec(server, Stage.STATISTICS)
    found["once: sums over its rows"] = _sums(server, options, data)
    penalties, omegas = len(options.penalties), len(options.other_omegas)
    if options.task == "single" and TEACHER in server.extra:
        count = penalties * len(TAUGHT)
        found[f"once: losses{_of(count)}"] = _after_sums(server, Stage.CANDIDATES, count)
    elif options.task == "single":
        found[f"once: losses and expected labels{_of(penalties)}"] = _after_sums(server, Stage.CANDIDATES, penalties)
        if options.refinements:
            times = _times(options.refinements)
            found[f"{times}: losses and expected labels{_of(1)}"] = _after_sums(server, Stage.CANDIDATES, 1)
    else:
        found[f"once: histograms of scores{_of(penalties)}"] = _after_sums(server, Stage.RANKING, penalties)
        if omegas:
            found[f"once: histograms of scores{_of(omegas)} more"] = _after_sums(server, Stage.RANKING, omegas)
    if options.likelihood:
        times = _times(options.likelihood + 1)
        found[f"{times}: gradient of the likelihood"] = _after_sums(server, Stage.GRADIENT, 1)
    return found


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _of(candidates: int) -> str:
    return f" of {candidates} candidate{'s' if candidates > 1 else ''}"


def _sums(server: Server, options: Options, data: Examples | None) -> ReplySpec:
    spec = reply_spec(server, Stage.SUMS)
    if data is None:
        return spec
    grams = spec.extra["grams"]
    number = matrices(data.y, data.known, options.task)
    return ReplySpec({}, {**spec.extra, "grams": replace(grams, shape=(number, *grams.shape[1:]), shorter=False)})


def _after_sums(server: Server, stage: Stage, candidates: int) -> ReplySpec:
    """Without the sums, which are sent once."""
    spec = reply_spec(server, stage, candidates)
    return ReplySpec({}, {name: one for name, one in spec.extra.items() if name not in (*SUMS, TEACHER_SUMS)})


def exchanges(model: DualEncoder, options: Options) -> int:
    """The number of exchanges of a run in which every client answers."""
    first = 2 if model.data_encoder.statistics_shapes else 1
    gradients = options.likelihood + 1 if options.likelihood else 0
    if options.task == "single":
        return first + 1 + options.refinements + gradients
    return first + (2 if options.other_omegas else 1) + gradients


def chosen(server: Server) -> dict[str, Any]:
    """What the method chose by itself."""
    found: dict[str, Any] = {"clients": held(server)}
    found |= {name: float(server.state[name]) for name in NUMBERS if name in server.state}
    if _singular(server):
        found["singular"] = _singular(server)
    if SHARES in server.extra:
        found["class_shares"] = [round(float(share), 6) for share in server.extra[SHARES]]
    if "priors" in server.state:
        found["priors"] = [round(float(p), 6) for p in server.state["priors"]]
    return found


def rejection(update: Update) -> Rejection | None:
    """Why a client's sums or statistics cannot come from rows; None if they can."""
    if "grams" in update.extra:
        classes, width = update.extra["class_sums"].shape
        reason = implausible_sums(update.extra, width - 1, classes)
        if reason is None and TEACHER_SUMS in update.extra:  # sums over all rows, of labels between 0 and 1
            all_rows = {"grams": update.extra["grams"][:1], "which": torch.full((classes,), ALL)}
            reason = implausible_sums({**all_rows, "class_sums": update.extra[TEACHER_SUMS]}, width - 1, classes)
    else:
        reason = reject_statistics(update.extra)
    return None if reason is None else Rejection(Reason.INVALID, f"its sums are not those of rows ({reason.value})")


def suspects(server: Server, label_names: Sequence[str]) -> dict[int, str]:
    """The clients that are left out, each with the classes whose labels the others contradict."""
    return {
        client: f"the other parties' sums contradict its labels of {_listed([label_names[c] for c in classes])}"
        for client, classes in doubted(server).items()
    }


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _singular(server: Server) -> list[int]:
    """The classes whose system was singular with the given penalty."""
    raised = server.state.get("raised", torch.zeros(0))
    return [int(c) for c in raised.nonzero().flatten()]


def warnings(server: Server, label_names: Sequence[str]) -> list[str]:
    """What a person should know about the result, one sentence each."""
    left_out = [f"party {m} is left out: {why}" for m, why in suspects(server, label_names).items()]
    if SHARES in server.extra and not bool(server.extra[SHARES].any()):
        left_out.append(
            "algorithm.balance changes nothing here: it needs data with one class per row, for each class a party that "
            "annotates it in all its rows, and no secure sums"
        )
    names = [label_names[c] for c in _singular(server)]
    if not names:
        return left_out
    return [
        *left_out,
        f"algorithm.penalty leaves the equations of {_listed(names)} without a unique solution, so they were solved "
        "with the smallest penalty that gives one; leave algorithm.penalty out to have it chosen",
    ]
