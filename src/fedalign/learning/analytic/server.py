"""The server's part: it keeps every client's sums, solves, and decides what to ask for next.

Exchanges with each client, by default:

- single-label, 6 (5 without statistics): statistics of the feature map, sums, the first solution, one candidate per
  penalty, two further refinements. In general 3 + refinements.
- multi-label, 4 (3 without statistics): statistics, sums, one candidate per penalty, one per weight of unknown entries.
- `likelihood` adds one more than its number of steps.

In a deployment a party answers one message per exchange, one before them with its label names, and one after them with
its scores: 8 messages in single-label, 6 in multi-label; one less for tables, whose feature map needs no statistics.

A client whose sums arrive late starts the exchanges after the sums again, so the result is the same, to the bit, as if
it had been there from the start. So does a client that leaves. The server waits once for a client that misses a later
exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from fedalign.learning.analytic import choose, likelihood, multi, single
from fedalign.learning.analytic.audit import contradicted
from fedalign.learning.analytic.client import SHARES, TEACHER, TEACHER_SUMS, Stage
from fedalign.learning.analytic.state import (
    COUNTS,
    SUMS,
    Options,
    added,
    double,
    doubted,
    held,
    stage_of,
    sums_of,
    with_extra,
    with_state,
)
from fedalign.learning.model import DualEncoder
from fedalign.system.memory import require_sum_memory
from fedalign.types import Arrays, ArraySpec, ReplySpec, Server, Update

__all__ = [
    "Options",
    "awaited",
    "finished",
    "held",
    "participants",
    "reply_spec",
    "stage_of",
    "start",
    "step",
    "thresholds",
    "without_client",
]
LASTING = ("sums/", "left/", "like/", "multi")  # what stays when the exchanges after the sums start again
WAITING = "waiting/"  # prefix of answers to an exchange that a client has missed


def start(model: DualEncoder, num_clients: int, balance: bool = False) -> Server:
    """What the server holds before the first exchange."""
    classes, dim = model.label_encoder.weight.shape
    require_sum_memory(num_clients, dim + 1, classes)
    shapes: dict[str, tuple[int, ...]] = model.data_encoder.statistics_shapes  # type: ignore[assignment]
    first = Stage.STATISTICS if shapes else Stage.SUMS
    extra = {
        "stage": torch.tensor([int(first)]),
        "held": torch.zeros(num_clients, dtype=torch.bool),  # whose sums the server has
        "candidates": torch.zeros(0, classes, dim + 1, dtype=double),
        "omega": torch.zeros(1, dtype=double),
    }
    if balance:
        extra[SHARES] = torch.zeros(classes, dtype=double)
    state = {f"like/{name}": torch.zeros(shape, dtype=double) for name, shape in shapes.items()}
    if model.task == "multi":
        state["multi"] = torch.ones(1, dtype=torch.bool)
    return Server(model.arrays(), num_clients, model.class_arrays, extra, state)


def participants(server: Server) -> list[int]:
    """The clients that have not left."""
    return [m for m in range(server.num_clients) if f"left/{m}" not in server.state]


def awaited(server: Server) -> list[int]:
    """The clients that have not left and whose sums are not there yet."""
    return sorted(set(participants(server)) - set(held(server)))


def finished(server: Server) -> bool:
    """Whether nothing is left to ask and every client's sums are there."""
    return stage_of(server) is Stage.DONE and not awaited(server)


def thresholds(server: Server) -> torch.Tensor | None:
    """(C,) the probabilities at which multi-label classes are decided, once they are known."""
    found = server.state.get("thresholds")
    return None if found is None else found.float()


def reply_spec(server: Server, stage: Stage, candidates: int | None = None) -> ReplySpec:
    """What a client may send at a stage. That sums are those of rows of norm at most 1 is checked by
    `sums.implausible_sums`."""
    count, classes, width = server.extra["candidates"].shape
    count = count if candidates is None else candidates
    if stage is Stage.STATISTICS:
        like = {name.removeprefix("like/"): v for name, v in server.state.items() if name.startswith("like/")}
        return ReplySpec({}, {name: ArraySpec(tuple(v.shape), double) for name, v in like.items()})
    # one Gram matrix of all rows, and one for each set of rows in which some class is known
    specs: dict[str, ArraySpec] = {
        "grams": ArraySpec((classes + 1, width * (width + 1) // 2), double, shorter=True),
        "which": ArraySpec((classes,), torch.int64),
        "class_sums": ArraySpec((classes, width), double),
    }
    if TEACHER in server.extra:
        specs[TEACHER_SUMS] = ArraySpec((classes, width), double)
    bins = (classes, 3, choose.BINS)
    shapes: dict[Stage, dict[str, tuple[int, ...]]] = {
        Stage.CANDIDATES: {
            "losses": (count, len(choose.TEMPERATURES)),
            "rows": (1,),
            "expected": (count, classes, width),
        },
        Stage.RANKING: {"validation": (count, *bins), "training": (count, *bins)},
        Stage.GRADIENT: {
            "loss": (1,),
            "gradient": (classes, width),
            "validation_loss": (1,),
            "reliability": (3, choose.SHARES),
        },
    }
    if TEACHER in server.extra:
        del shapes[Stage.CANDIDATES]["expected"]
    return ReplySpec({}, specs | {name: ArraySpec(shape, double) for name, shape in shapes.get(stage, {}).items()})


def step(model: DualEncoder, server: Server, updates: Sequence[Update], options: Options) -> Server:
    """The server's next state, from the answers of the clients in client order."""
    stage = stage_of(server)
    if stage is Stage.STATISTICS:
        return _fit(model, server, [update.extra for update in updates])
    sent = [update for update in updates if "grams" in update.extra]
    names = (*SUMS, TEACHER_SUMS, *COUNTS)
    new = {f"sums/{u.client}/{name}": u.extra[name] for u in sent for name in names if name in u.extra}
    server = replace(server, state={**server.state, **new})
    server = with_extra(server, held=_flags(server, held(server)))
    if new or stage is Stage.SUMS:
        return _first(server, [update.client for update in updates], options)
    if stage is Stage.DONE:  # a client is awaited and did not answer
        return server
    answers = _answers(server) | {update.client: update.extra for update in updates}
    server = replace(server, state={k: v for k, v in server.state.items() if not k.startswith(WAITING)})
    missing = [m for m in held(server) if m not in answers and bool(server.state["present"][m])]
    if missing:  # asked once more; whoever stays away after that is not waited for again
        arrays = {f"{WAITING}{m}/{name}": value for m, answer in answers.items() for name, value in answer.items()}
        return with_state(server, **arrays, present=_flags(server, list(answers)))
    server = with_state(server, present=_flags(server, list(answers)))
    after: dict[Stage, Callable[[Server, Sequence[Arrays], Options], Server]] = {
        Stage.CANDIDATES: single.after_candidates,
        Stage.RANKING: multi.after_ranking,
        Stage.GRADIENT: likelihood.after_gradient,
    }
    kept = [m for m in sorted(answers) if m not in doubted(server)]
    return after[stage](server, [answers[m] for m in kept or sorted(answers)], options)


def _flags(server: Server, clients: Sequence[int]) -> torch.Tensor:
    flags = torch.zeros(server.num_clients, dtype=torch.bool)
    flags[list(clients)] = True
    return flags


def _answers(server: Server) -> dict[int, Arrays]:
    """Answers that were kept while the server waits for other clients."""
    found: dict[int, Arrays] = {}
    for name, value in server.state.items():
        if name.startswith(WAITING):
            client, _, array = name.removeprefix(WAITING).partition("/")
            found.setdefault(int(client), {})[array] = value
    return found


def _fit(model: DualEncoder, server: Server, answers: Sequence[Arrays]) -> Server:
    fitted = model.clone().load(server.weights)
    fitted.data_encoder.fit({name: added(answers, name) for name in answers[0]})  # type: ignore[operator]
    return with_extra(replace(server, weights=fitted.arrays()), stage=torch.tensor([int(Stage.SUMS)]))


def _first(server: Server, present: Sequence[int], options: Options) -> Server:
    """All sums are there: the first candidates. What was chosen with the sums of fewer clients is dropped."""
    if not held(server):
        return server
    state = {name: value for name, value in server.state.items() if name.startswith(LASTING)}
    server = replace(server, state=state)
    server = with_state(server, phase=torch.zeros(1, dtype=torch.int64), present=_flags(server, present))
    if options.robust != "off":
        pairs = [(m, c) for m, classes in contradicted(sums_of(server)).items() for c in classes]
        server = with_state(server, doubted=torch.tensor(pairs, dtype=torch.int64).view(-1, 2))
    return (multi if options.task == "multi" else single).first(server, options)


def without_client(server: Server, client: int) -> Server:
    """The state without a client's sums; the exchanges after the sums start again. The feature map stays as it was."""
    state = {name: value for name, value in server.state.items() if name.startswith(LASTING)}
    state = {name: value for name, value in state.items() if not name.startswith(f"sums/{client}/")}
    state[f"left/{client}"] = torch.ones(1, dtype=torch.bool)
    flags = server.extra["held"].clone()
    flags[client] = False
    fresh = {"stage": torch.tensor([int(Stage.SUMS)]), "held": flags, "candidates": server.extra["candidates"][:0]}
    return replace(server, state=state, extra={**server.extra, **fresh})
