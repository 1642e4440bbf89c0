"""The messages of secure sums as arrays: what the server passes on, what a client may send, and the server's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedalign.learning.analytic import joint
from fedalign.learning.analytic.client import Stage
from fedalign.learning.analytic.state import SUMS, stage_of
from fedalign.privacy.secure_sums import shamir
from fedalign.privacy.secure_sums.identity import KEY, SIGNATURE
from fedalign.privacy.secure_sums.masks import Session
from fedalign.privacy.secure_sums.party import SEALED, ZEROS, KeyMessage
from fedalign.types import Arrays, ArraySpec, Examples, ReplySpec, Server, Task, Update

if TYPE_CHECKING:
    from fedalign.learning.analytic.secure import SecureAnalytic

OWN = "secure/"  # prefix of the arrays of this module among those of the method


class Step(IntEnum):
    """What a client is asked for."""

    KEYS = 0
    SHARES = 1
    MASKED = 2
    UNMASK = 3


SENT = {
    Step.KEYS: {"public", "commitment", "signature"},
    Step.SHARES: {"sealed"},
    Step.MASKED: {"masked"},
    Step.UNMASK: {"shares"},
}


def session_of(run: str, extra: Mapping[str, Tensor]) -> Session:
    """The exchange that the server's arrays are about."""
    number = {name: int(extra[OWN + name]) for name in ("exchange", "attempt", "threshold")}
    return Session(f"{run} {extra[OWN + 'run'].numpy().tobytes().hex()}", **number)


def begin(inner: Server, threshold: int, run: bytes) -> Server:
    """The server's state before the first exchange."""
    own = {
        "run": bytes_of(run),
        "threshold": torch.tensor([threshold]),
        "exchange": torch.tensor([1]),
        "attempt": torch.tensor([0]),
        "step": torch.tensor([int(Step.KEYS)]),
    }
    return replace(inner, extra={**inner.extra, **{OWN + name: value for name, value in own.items()}})


def inner_of(server: Server) -> Server:
    """The state of the method, for which all clients are one."""
    extra, state = (
        {k: v for k, v in arrays.items() if not k.startswith(OWN)} for arrays in (server.extra, server.state)
    )
    return replace(server, num_clients=1, extra=extra, state=state)


def joined(server: Server, inner: Server) -> Server:
    """The method's next state, with the arrays of this module as they were."""
    extra, state = ({k: v for k, v in arrays.items() if k.startswith(OWN)} for arrays in (server.extra, server.state))
    return replace(
        inner, num_clients=server.num_clients, extra={**inner.extra, **extra}, state={**inner.state, **state}
    )


def next_exchange(server: Server, attempt: int) -> Server:
    """Everything of this exchange is dropped. An attempt above 0 repeats it with new keys."""
    kept = ("run", "threshold", "exchange")
    extra = {k: v for k, v in server.extra.items() if not k.startswith(OWN) or k.removeprefix(OWN) in kept}
    state = {k: v for k, v in server.state.items() if not k.startswith(OWN) or k == OWN + "members"}
    if attempt == 0:
        extra[OWN + "exchange"] = extra[OWN + "exchange"] + 1
    step = {OWN + "step": torch.tensor([int(Step.KEYS)]), OWN + "attempt": torch.tensor([attempt])}
    return replace(server, extra={**extra, **step}, state=state)


# --- the server's steps ---------------------------------------------------------------------------------------------


def after_keys(server: Server, there: Sequence[Update]) -> Server:
    classes = len(there[0].classes)
    keys = torch.zeros(server.num_clients, 2 * KEY + SIGNATURE, dtype=torch.uint8)
    claims = torch.zeros(server.num_clients, classes, dtype=torch.bool)
    for update in there:
        keys[update.client] = torch.cat([update.extra[name] for name in ("public", "commitment", "signature")])
        claims[update.client] = update.classes
    return _advance(server, Step.SHARES, there, {"keys": keys, "claims": claims})


def after_shares(server: Server, there: Sequence[Update]) -> Server:
    n = server.num_clients
    sealed = torch.zeros(n, n, SEALED, dtype=torch.uint8)  # (sender, receiver, bytes)
    for update in there:
        sealed[update.client] = update.extra["sealed"]
    shared = {OWN + "shared": torch.tensor([update.client for update in there])}
    server = replace(server, state={**server.state, **shared})
    return _advance(server, Step.MASKED, there, {"sealed": sealed})


def after_masked(server: Server, there: Sequence[Update]) -> Server:
    total = torch.zeros_like(there[0].extra["masked"])
    for update in there:
        total += update.extra["masked"]  # int64 wraps, which is addition modulo 2^64
    server = replace(server, state={**server.state, OWN + "masked": total})
    extra = {k: v for k, v in server.extra.items() if k != OWN + "sealed"}
    return _advance(replace(server, extra=extra), Step.UNMASK, there, {})


def _advance(server: Server, step: Step, there: Sequence[Update], arrays: Arrays) -> Server:
    flags = torch.zeros(server.num_clients, dtype=torch.bool)
    flags[[update.client for update in there]] = True
    new = {"step": torch.tensor([int(step)]), "there": flags, **arrays}
    return replace(server, extra={**server.extra, **{OWN + name: value for name, value in new.items()}})


# --- arrays and bytes -----------------------------------------------------------------------------------------------


def bytes_of(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())


def there_of(extra: Mapping[str, Tensor]) -> list[int]:
    """The clients that completed the step before."""
    return [int(m) for m in extra[OWN + "there"].nonzero().flatten()]


def claim_of(classes: Tensor) -> bytes:
    """The classes that a client annotates, as part of what it signs."""
    return bytes(classes.to(torch.uint8).tolist())


def key_message(update: Update) -> KeyMessage:
    public, commitment, signature = (
        update.extra[name].numpy().tobytes() for name in ("public", "commitment", "signature")
    )
    return KeyMessage(public, commitment, claim_of(update.classes), signature)


def keys_of(extra: Mapping[str, Tensor]) -> dict[int, KeyMessage]:
    """The key messages that the server passes on, of the clients that sent one."""
    found = {}
    for m, (row, classes) in enumerate(zip(extra[OWN + "keys"], extra[OWN + "claims"], strict=True)):
        data = row.numpy().tobytes()
        if any(data):
            found[m] = KeyMessage(data[:KEY], data[KEY : 2 * KEY], claim_of(classes), data[2 * KEY :])
    return found


def shares_of(update: Update, shared: Sequence[int]) -> dict[int, bytes]:
    return {m: update.extra["shares"][m].numpy().tobytes() for m in shared}


def packed(arrays: Arrays) -> Tensor:
    """All arrays as one vector, in the order of their names."""
    return torch.cat([arrays[name].to(torch.float64).flatten() for name in sorted(arrays)])


def shapes(algorithm: SecureAnalytic, server: Server) -> dict[str, tuple[int, ...]]:
    """The arrays of the exchange that the server has reached, in the common form."""
    specs = algorithm.inner.reply_spec(inner_of(server), 1).extra
    if stage_of(server) is not Stage.SUMS:
        return {name: spec.shape for name, spec in specs.items() if name not in SUMS}
    task: Task = "multi" if "multi" in server.state else "single"
    grams = 1 + len(joint.form_of(server.extra[OWN + "claims"], task).owners)
    return {"grams": (grams, specs["grams"].shape[1]), "class_sums": specs["class_sums"].shape}


def unpacked(algorithm: SecureAnalytic, server: Server, vector: Tensor) -> Arrays:
    """The arrays of one vector."""
    found = dict(sorted(shapes(algorithm, server).items()))
    parts = vector.split([prod(shape) for shape in found.values()])
    return {name: part.view(shape) for (name, shape), part in zip(found.items(), parts, strict=True)}


# --- what a client may send -----------------------------------------------------------------------------------------


def reply_spec(algorithm: SecureAnalytic, server: Server) -> ReplySpec:
    """What a client may send in the step that the server has reached."""
    step, n = Step(int(server.extra[OWN + "step"])), server.num_clients
    if step is Step.KEYS:
        sizes = {"public": (KEY,), "commitment": (KEY,), "signature": (SIGNATURE,)}
        return ReplySpec({}, {name: ArraySpec(size, torch.uint8) for name, size in sizes.items()})
    if step is Step.SHARES:
        return ReplySpec({}, {"sealed": ArraySpec((n, SEALED), torch.uint8)})
    if step is Step.UNMASK:
        return ReplySpec({}, {"shares": ArraySpec((n, shamir.SIZE), torch.uint8)})
    length = sum(prod(shape) for shape in shapes(algorithm, server).values()) + ZEROS
    return ReplySpec({}, {"masked": ArraySpec((length,), torch.int64)})


def reply_specs(algorithm: SecureAnalytic, server: Server, data: Examples | None) -> dict[str, ReplySpec]:
    """What a client would send over a whole run: what the method sends, masked, and the messages around it."""
    found = {}
    for when, spec in algorithm.inner.reply_specs(inner_of(server), data).items():
        length = sum(prod(one.shape) for one in spec.extra.values()) + ZEROS
        found[f"{when}, masked"] = ReplySpec({}, {"masked": ArraySpec((length,), torch.int64)})
    keys = reply_spec(algorithm, server).extra
    each = keys | {
        "sealed": ArraySpec((server.num_clients, SEALED), torch.uint8),
        "shares": ArraySpec((server.num_clients, shamir.SIZE), torch.uint8),
    }
    return {**found, "with each of them: keys and shares of keys": ReplySpec({}, each)}
