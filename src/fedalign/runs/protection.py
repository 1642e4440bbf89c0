"""How the section `[privacy]` changes the algorithm of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedalign.config import Config
from fedalign.errors import UserError, nearest
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.analytic.joint import exposed, require_consent
from fedalign.learning.analytic.private import PrivateAnalytic, private
from fedalign.learning.analytic.secure import SecureAnalytic, secure
from fedalign.learning.model import DualEncoder
from fedalign.learning.private_training import PrivateTraining, private_training
from fedalign.learning.rounds import choose
from fedalign.privacy.secure_sums.identity import Identity
from fedalign.runs.ledgers import ledgers
from fedalign.types import Federation, elsewhere


def protected(algorithm: Algorithm, config: Config) -> Algorithm:
    """The algorithm with noise, with masks, or with both."""
    asked = config.privacy
    if asked.on and not algorithm.fixed_features:
        if asked.secure_sums:
            raise UserError("privacy.secure_sums works with algorithm.name = 'analytic' only; remove it")
        return PrivateTraining(inner=algorithm, privacy=asked, visits=1, epochs=1)  # completed by `simulated`
    if asked.on:
        algorithm = private(algorithm, asked, config.name, config.seed)
    return secure(algorithm, asked.threshold, asked.consent, config.name) if asked.secure_sums else algorithm


def noisy(algorithm: Algorithm) -> PrivateAnalytic | None:
    """The part of an algorithm that adds noise, if there is one."""
    inner = algorithm.inner if isinstance(algorithm, SecureAnalytic) else algorithm
    return inner if isinstance(inner, PrivateAnalytic) else None


def simulated(algorithm: Algorithm, config: Config, data: Federation) -> Algorithm:
    """The algorithm for a run on one machine: with the ledger of every party, and identities made from the seed."""
    if config.privacy.on and config.thresholds:
        raise UserError("thresholds = true counts hits on the parties' rows; remove it, or remove privacy.epsilon")
    if isinstance(algorithm, PrivateTraining):
        return gradients(algorithm.inner, config, data)
    found = noisy(algorithm)
    deployed = bool(data.parties) and all(elsewhere(party.train) for party in data.parties)
    if found is not None and not deployed:  # a deployed party adds its own ledger
        found = replace(found, ledgers=ledgers(config, data))
    if not isinstance(algorithm, SecureAnalytic):
        return found or algorithm
    unknown = sorted(set(algorithm.consent) - set(data.label_names))
    if unknown:
        raise UserError(
            f"privacy.consent names {unknown[0]!r}, which is no class{nearest(unknown[0], data.label_names)}"
        )
    few = [data.label_names[c] for c in exposed(data.classes, data.task)]
    require_consent([name for name in few if name not in algorithm.consent])
    algorithm = replace(algorithm, inner=found or algorithm.inner, label_names=tuple(data.label_names))
    names = [party.name for party in data.parties]
    if deployed:
        return replace(algorithm, identities=identities_of(config, names))
    private = tuple(Identity.simulated(config.seed, name) for name in names)
    return replace(algorithm, identities=tuple(one.public for one in private), private=private)


def identities_of(config: Config, names: Sequence[str]) -> tuple[bytes, ...]:
    """The public keys of these parties, as the configuration lists them."""
    known = config.privacy.identities
    missing = [name for name in names if name not in known]
    if missing:
        raise UserError(
            f"privacy.identities has no key of {missing[0]!a}; add what fedalign receipt identity prints there"
        )
    return tuple(bytes.fromhex(known[name]) for name in names)


def gradients(algorithm: Algorithm, config: Config, data: Federation) -> PrivateTraining:
    """A gradient method with noise. Who takes part in which round follows from the seed, so it is no secret."""
    count = len(data.parties)
    taken = [0] * count
    for number in range(1, config.rounds + 1):
        for client in choose(config.seed, number, count, config.clients_per_round):
            taken[client] += 1
    found = private_training(
        algorithm,
        config.privacy,
        config.training,
        max(taken),
        config.algorithm.name,
        config.name,
        config.seed,
        data.task,
    )
    return replace(found, ledgers=ledgers(config, data))


def check_ledgers(algorithm: Algorithm, model: DualEncoder) -> None:
    """Refuses the run if the ledger of one of its parties does, before anything is written."""
    if isinstance(algorithm, PrivateTraining):
        algorithm.check_ledgers(model)
    found = noisy(algorithm)
    if found is not None:
        found.check_ledgers()
