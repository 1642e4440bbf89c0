"""Sums that the server cannot open: equal to the bit, whoever vanishes, and refused where they would be unsafe."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy.stats import chisquare

from fedalign.errors import UserError

pytest.importorskip("cryptography")

from fedalign.privacy.secure_sums import fixed_point, party, server, shamir
from fedalign.privacy.secure_sums.identity import Identity
from fedalign.privacy.secure_sums.masks import Session

NOBODY: frozenset[int] = frozenset()


@dataclass
class Exchange:
    """A secure sum in one process. Parties vanish before the step of that number, counted from 1."""

    parties: int
    threshold: int
    session: Session = field(init=False)

    def __post_init__(self) -> None:
        self.session = Session("run", 1, 0, self.threshold)
        self.identities = [Identity.simulated(m) for m in range(self.parties)]
        self.public = [identity.public for identity in self.identities]

    def keys(self, there: Collection[int]) -> None:
        made = {m: party.keys(self.session, m, self.identities[m]) for m in there}
        self.messages = {m: message for m, (message, _) in made.items()}
        self.secrets = {m: secrets for m, (_, secrets) in made.items()}

    def shares(self, there: Collection[int]) -> None:
        self.sealed = {}
        for m in there:
            self.sealed[m], self.secrets[m] = party.shares(self.session, m, self.secrets[m], self.messages, self.public)

    def for_party(self, m: int) -> dict[int, bytes]:
        return {sender: sealed[m] for sender, sealed in self.sealed.items() if sender != m}

    def masked(self, there: Collection[int], values: np.ndarray) -> None:
        self.sums = {}
        for m in there:
            self.sums[m], self.secrets[m] = party.masked(self.session, m, self.secrets[m], self.for_party(m), values[m])

    def unmask(self, there: Collection[int]) -> None:
        self.answers = {}
        for m in there:
            self.answers[m], self.secrets[m] = party.unmask(self.session, m, self.secrets[m], self.sums.keys())

    def total(self) -> np.ndarray:
        masked = np.add.reduce(list(self.sums.values()))
        return server.total(self.session, self.messages, self.sealed, self.sums, masked, self.answers)

    def run(self, values: np.ndarray, gone: dict[int, Collection[int]]) -> np.ndarray:
        there = set(range(self.parties))
        for step, act in enumerate((self.keys, self.shares, lambda who: self.masked(who, values), self.unmask), 1):
            there -= set(gone.get(step, NOBODY))
            act(sorted(there))
        return self.total()


def numbers(parties: int, count: int = 40) -> np.ndarray:
    return np.random.default_rng(parties).normal(size=(parties, count)) * 1000


def plain(values: np.ndarray, parties: int) -> np.ndarray:
    """The sum of the rounded numbers, in integers."""
    rows = [fixed_point.encode(row, parties).view(np.int64).astype(object) for row in values]
    return np.array([int(n) for n in sum(rows)], dtype=np.int64) * 2.0**-32


@pytest.mark.parametrize(("parties", "threshold"), [(3, 2), (3, 3), (10, 6), (10, 7)])
def test_sums_equal_plain_ones_to_the_bit_whoever_vanishes_at_any_step(parties: int, threshold: int) -> None:
    values = numbers(parties)
    for step in range(1, 5):
        most = parties - max(threshold, 2 if step == 4 else 3)
        for count in sorted({0, 1, most} if parties > 3 else range(most + 1)):
            gone = {step: list(range(0, parties, 2))[:count]}
            lost = set(gone[step]) if step < 4 else set()
            rest = [m for m in range(parties) if m not in lost]
            found = Exchange(parties, threshold).run(values, gone)
            assert np.array_equal(found, plain(values[rest], parties)), (step, count)


def test_fifty_parties_of_which_some_vanish_at_every_step() -> None:
    values = numbers(50)
    found = Exchange(50, 26).run(values, {1: [0, 7], 2: [3, 49], 3: [1, 2, 30, 31], 4: list(range(10, 20))})
    rest = [m for m in range(50) if m not in (0, 7, 3, 49, 1, 2, 30, 31)]
    assert np.array_equal(found, plain(values[rest], 50))


@pytest.mark.slow
def test_fifty_parties_of_which_as_many_vanish_as_the_threshold_allows() -> None:
    values = numbers(50, 5)
    for step, count in itertools.product(range(1, 5), (0, 1, 16)):
        gone = {step: list(range(5, 5 + count))}
        rest = [m for m in range(50) if step == 4 or m not in gone[step]]
        assert np.array_equal(Exchange(50, 34).run(values, gone), plain(values[rest], 50))


def test_a_masked_array_is_uniformly_distributed() -> None:
    exchange, count = Exchange(3, 2), 20_000
    exchange.keys(range(3))
    exchange.shares(range(3))
    exchange.masked(range(3), np.ones((3, count)))
    masked = exchange.sums[0]
    for shift in range(0, 64, 8):  # every byte of the numbers
        counts = np.bincount(((masked >> np.uint64(shift)) & np.uint64(255)).astype(np.int64), minlength=256)
        assert chisquare(counts).pvalue > 1e-5
    assert abs(np.corrcoef(masked[:-1].astype(float), masked[1:].astype(float))[0, 1]) < 0.04
    assert server.looks_masked(masked)
    assert not server.looks_masked(fixed_point.encode(np.ones(count), 3))


def test_fewer_shares_than_the_threshold_fit_every_secret() -> None:
    secret = bytes(31) + b"\x2a"
    shares = shamir.divide(secret, [0, 1, 2, 3], 3)
    assert shamir.recover(shares, 3) == secret == shamir.recover({k: shares[k] for k in (1, 2, 3)}, 3)
    two = {k: int.from_bytes(shares[k]) for k in (0, 1)}
    for other in (0, 1, 10**40):  # the parabola through (0, other) and the two shares exists
        p, (one, two_) = shamir.PRIME, (two[0], two[1])
        a = (two_ - 2 * one + other) * pow(2, -1, p) % p
        b = (one - a - other) % p
        assert (other + a + b) % p == one
        assert (other + 2 * b + 4 * a) % p == two_
    with pytest.raises(UserError, match="2 shares of a secret are there and 3 are needed, so the sum stays closed"):
        shamir.recover({k: shares[k] for k in (0, 1)}, 3)


def started(parties: int = 4, threshold: int = 3) -> Exchange:
    exchange = Exchange(parties, threshold)
    exchange.keys(range(parties))
    exchange.shares(range(parties))
    return exchange


def test_too_few_answers_leave_the_sum_closed() -> None:
    exchange = started()
    exchange.masked(range(4), numbers(4))
    exchange.unmask([0, 1])
    with pytest.raises(UserError, match="2 shares of a secret are there and 3 are needed"):
        exchange.total()


def test_too_few_parties_are_refused_at_every_step() -> None:
    sentence = "2 parties are left and a secure sum needs 3"
    exchange = Exchange(4, 3)
    exchange.keys([0, 1])
    with pytest.raises(UserError, match=sentence):
        exchange.shares([0])
    exchange = started()
    exchange.sealed = {m: exchange.sealed[m] for m in (0, 1)}
    with pytest.raises(UserError, match=sentence):
        exchange.masked([0], numbers(4))
    exchange = started()
    exchange.masked([0, 1], numbers(4))
    with pytest.raises(UserError, match=sentence):
        exchange.unmask([0])


def test_a_threshold_of_half_the_parties_is_refused() -> None:
    with pytest.raises(UserError, match=r"privacy\.threshold = 2 is not more than half of 4 parties; raise it"):
        started(4, 2)


def test_a_replayed_share_is_refused() -> None:
    old, new = started(), started()
    new.sealed[1] = old.sealed[1]
    with pytest.raises(UserError, match="a share from party 1 is not of this exchange"):
        new.masked([0], numbers(4))


def test_a_replayed_answer_does_not_open_the_sum() -> None:
    old, new = started(), started()
    for exchange in (old, new):
        exchange.masked(range(4), numbers(4))
        exchange.unmask(range(4))
    new.answers[0] = old.answers[0]
    with pytest.raises(UserError, match=r"do not belong together|wrong or replayed"):
        new.total()


def test_keys_of_another_run_are_refused() -> None:
    exchange, other = Exchange(4, 3), Exchange(4, 3)
    other.session = Session("another run", 1, 0, 3)
    exchange.keys(range(4))
    other.keys(range(4))
    exchange.messages[2] = other.messages[2]
    with pytest.raises(UserError, match="the key of party 2 is not signed for this exchange"):
        exchange.shares([0])


def test_a_key_that_the_server_made_up_is_refused() -> None:
    exchange = Exchange(4, 3)
    exchange.keys(range(4))
    exchange.messages[2], _ = party.keys(exchange.session, 2, Identity.new())
    with pytest.raises(UserError, match="of another run or of somebody else"):
        exchange.shares([0])


def test_masks_of_another_run_do_not_cancel() -> None:
    exchange, other = started(), started()
    values = numbers(4)
    exchange.masked(range(4), values)
    other.masked(range(4), values)
    exchange.sums[1] = other.sums[1]
    exchange.unmask(range(4))
    with pytest.raises(UserError, match="the masks do not cancel"):
        exchange.total()


def test_a_party_answers_once_and_never_opens_both_secrets() -> None:
    exchange = started()
    exchange.masked(range(4), numbers(4))
    with pytest.raises(UserError, match="has sent its masked sums already"):
        exchange.masked([0], numbers(4))
    before = exchange.secrets[0]
    answer, after = party.unmask(exchange.session, 0, before, [0, 1, 2])
    assert all(len(share) == shamir.SIZE for share in answer.values())
    assert answer[3] == before.shares[3][: shamir.SIZE]  # of the key: it is gone
    assert answer[1] == before.shares[1][shamir.SIZE :]  # of the seed: it sent numbers
    with pytest.raises(UserError, match="has unmasked this exchange already"):
        party.unmask(exchange.session, 0, after, [0, 1, 2, 3])


def test_numbers_that_do_not_fit_are_refused() -> None:
    for value in (np.inf, np.nan, 2.0**31):
        with pytest.raises(UserError, match="do not fit into 64 bits"):
            fixed_point.encode(np.array([value]), 2)
