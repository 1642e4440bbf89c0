"""A client's part of secure sums: its secrets are in its own state, and it refuses what would open its sums."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedalign.errors import UserError
from fedalign.learning.analytic import joint
from fedalign.learning.analytic.client import Stage
from fedalign.learning.analytic.private import PrivateAnalytic
from fedalign.learning.analytic.secure_messages import (
    OWN,
    Step,
    bytes_of,
    claim_of,
    keys_of,
    packed,
    session_of,
    there_of,
)
from fedalign.privacy.secure_sums import party, shamir
from fedalign.privacy.secure_sums.identity import KEY
from fedalign.privacy.secure_sums.masks import Pair, Session
from fedalign.privacy.secure_sums.party import SEALED, Secrets
from fedalign.types import Arrays, Update, Visit

if TYPE_CHECKING:
    from fedalign.learning.analytic.secure import SecureAnalytic


def answer(algorithm: SecureAnalytic, visit: Visit) -> tuple[Update, Arrays]:
    """(what the client sends in this step, its secrets)."""
    step, session = Step(int(visit.received[OWN + "step"])), session_of(algorithm.run, visit.received)
    if step is Step.KEYS:
        sent, state = _keys(algorithm, visit, session)
    else:
        if visit.state.get("context") is None or visit.state["context"].numpy().tobytes() != session.context:
            raise UserError(
                "the server asks about an exchange in which this party sent no key; nothing is sent, resume the run"
            )
        sent, state = STEPS[step](algorithm, visit, session)
    return Update({}, 0, visit.data.classes, sent), {"context": bytes_of(session.context), **state}


def _keys(algorithm: SecureAnalytic, visit: Visit, session: Session) -> tuple[Arrays, Arrays]:
    identity = algorithm.private[visit.client] if visit.client < len(algorithm.private) else None
    if identity is None:
        raise UserError("this party has no identity; make one with fedalign receipt identity")
    message, secrets = party.keys(session, visit.client, identity, claim_of(visit.data.classes))
    sent = {
        "public": bytes_of(message.public),
        "commitment": bytes_of(message.commitment),
        "signature": bytes_of(message.signature),
    }
    return sent, stored(secrets, len(algorithm.identities))


def _shares(algorithm: SecureAnalytic, visit: Visit, session: Session) -> tuple[Arrays, Arrays]:
    n = len(algorithm.identities)
    sealed, secrets = party.shares(
        session, visit.client, restored(visit.state), keys_of(visit.received), algorithm.identities
    )
    claims = visit.received[OWN + "claims"].clone()
    check_consent(algorithm, visit, claims)
    sent = torch.zeros(n, SEALED, dtype=torch.uint8)
    for other, message in sealed.items():
        sent[other] = bytes_of(message)
    return {"sealed": sent}, {**stored(secrets, n), "claims": claims}


def _masked(algorithm: SecureAnalytic, visit: Visit, session: Session) -> tuple[Arrays, Arrays]:
    there, claims = there_of(visit.received), visit.state["claims"]  # as signed by each party
    check_consent(algorithm, visit, claims[there])
    column = visit.received[OWN + "sealed"][:, visit.client]
    sealed = {m: column[m].numpy().tobytes() for m in there if m != visit.client}
    values = packed(contribution(algorithm, visit, claims)).numpy()
    numbers, secrets = party.masked(session, visit.client, restored(visit.state), sealed, values)
    return {"masked": torch.from_numpy(numbers.view(np.int64))}, {
        **stored(secrets, len(algorithm.identities)),
        "claims": claims,
    }


def _unmask(algorithm: SecureAnalytic, visit: Visit, session: Session) -> tuple[Arrays, Arrays]:
    there, claims = there_of(visit.received), visit.state["claims"]
    check_consent(algorithm, visit, claims[there])
    found, secrets = party.unmask(session, visit.client, restored(visit.state), there)
    sent = torch.zeros(len(algorithm.identities), shamir.SIZE, dtype=torch.uint8)
    for other, share in found.items():
        sent[other] = bytes_of(share)
    return {"shares": sent}, {**stored(secrets, len(algorithm.identities)), "claims": claims}


STEPS = {Step.SHARES: _shares, Step.MASKED: _masked, Step.UNMASK: _unmask}


def check_consent(algorithm: SecureAnalytic, visit: Visit, claims: Tensor) -> None:
    """Refuses a sum that shows what this client and at most one other have of a class, unless it was agreed to."""
    few = [algorithm.label_names[c] for c in joint.exposed(claims, visit.model.task) if bool(visit.data.classes[c])]
    joint.require_consent([name for name in few if name not in algorithm.consent])


def contribution(algorithm: SecureAnalytic, visit: Visit, claims: Tensor) -> Arrays:
    """The client's part of the total that this exchange is about."""
    received = {name: value for name, value in visit.received.items() if not name.startswith(OWN)}
    received["held"] = received["held"][:1].expand(len(claims))  # all clients are one
    task, sums = visit.model.task, int(received["stage"]) == Stage.SUMS
    data = visit.data
    if sums and not isinstance(algorithm.inner, PrivateAnalytic):
        data = joint.with_common_labels(data, task)
    update, _ = algorithm.inner.local_update(replace(visit, received=received, data=data, state={}))
    if not sums:
        return update.extra
    return joint.common_sums(update.extra, joint.form_of(claims, task), visit.client)


# --- secrets as arrays ----------------------------------------------------------------------------------------------


def stored(secrets: Secrets, clients: int) -> Arrays:
    """A client's secrets as arrays of its state, which stays on its own machine."""
    pairs = torch.zeros(clients, 2 * KEY, dtype=torch.uint8)
    shares = torch.zeros(clients, 2 * shamir.SIZE, dtype=torch.uint8)
    for other, pair in secrets.pairs.items():
        pairs[other] = bytes_of(pair.mask + pair.seal)
    for other, share in secrets.shares.items():
        shares[other] = bytes_of(share)
    flags = torch.tensor([secrets.sent, secrets.unmasked])
    both = {"private": bytes_of(secrets.private), "seed": bytes_of(secrets.seed)}
    return {**both, "pairs": pairs, "shares": shares, "flags": flags}


def restored(state: Arrays) -> Secrets:
    """The secrets of a state. A row of zeros is a party that is not there."""
    pairs = {m: row.numpy().tobytes() for m, row in enumerate(state["pairs"]) if bool(row.any())}
    shares = {m: row.numpy().tobytes() for m, row in enumerate(state["shares"]) if bool(row.any())}
    sent, unmasked = state["flags"].tolist()
    return Secrets(
        state["private"].numpy().tobytes(),
        state["seed"].numpy().tobytes(),
        {m: Pair(data[:KEY], data[KEY:]) for m, data in pairs.items()},
        shares,
        sent,
        unmasked,
    )
