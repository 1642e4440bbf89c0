"""Robust statistics of the clients' changes. Each takes values (clients, ...) and none has a state.

References: coordinate-wise median and trimmed mean (Yin et al., ICML 2018), geometric median (Pillutla et al., 2022),
multi-Krum (Blanchard et al., NeurIPS 2017), centred clipping (Karimireddy et al., ICML 2021).
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 32  # of Weiszfeld's iteration; the error halves in one or two of them
CLIPPING_STEPS = 3  # of centred clipping, as its authors use
AGREES = 0.5  # part of the usual agreement that a client's must have, reversed, to be suspected
CLEAR = 0.1  # the smallest cosine, reversed, that says something
LOUD = 1.5  # times the median change, from which a change that agrees with nobody is noise
SILENT = 0.01  # of the median change, up to which a change is none
SAME = 0.9  # the cosine from which two changes say the same
UNITED = 0.25  # the agreement that most of a group must have with each other for its word to count
OPPOSITION = 0.05  # that agreement times the reversed mean cosine with another group, from which it works against it
TINY = 1e-12


def most_hostile(clients: int) -> int:
    """The largest minority that a vote of so many clients can overrule, with one third as the design limit."""
    return max(0, min((clients - 1) // 2, -(-clients // 3)))


def coordinate_median(values: Tensor) -> Tensor:
    """The median of each number over the clients; between two middle ones, their mean."""
    ordered = values.sort(0).values
    count = len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def trimmed_mean(values: Tensor, trim: int) -> Tensor:
    """The mean of each number without its `trim` smallest and largest values."""
    if 2 * trim >= len(values):
        return coordinate_median(values)
    return values.sort(0).values[trim : len(values) - trim].mean(0)


def geometric_median(values: Tensor) -> Tensor:
    """The point with the smallest sum of distances to the clients' values, by Weiszfeld's iteration."""
    flat = values.reshape(len(values), -1).double()
    center = flat.median(0).values
    for _ in range(STEPS):
        distance = (flat - center).norm(dim=1).clamp(min=TINY)
        weight = 1 / distance
        center = (weight / weight.sum()) @ flat
    return center.to(values.dtype).view(values.shape[1:])


def multi_krum(values: Tensor, hostile: int) -> Tensor:
    """(clients,) bool: the clients with the smallest distances to their nearest neighbours; `hostile` are left out."""
    count = len(values)
    flat = values.reshape(count, -1).double()
    near = max(1, count - hostile - 2)
    distances = torch.cdist(flat, flat).square()
    scores = distances.sort(1).values[:, 1 : near + 1].sum(1)  # the nearest of all is the client itself
    kept = torch.zeros(count, dtype=torch.bool)
    kept[scores.argsort(stable=True)[: max(1, count - hostile)]] = True
    return kept


def centred_clip(values: Tensor, center: Tensor, radius: float | None = None) -> Tensor:
    """The mean of the values, each moved towards `center` until it is no further than `radius` from it.

    Args:
        values: (clients, ...).
        center: what the clients agreed on in the round before.
        radius: None: the median distance to the center.
    """
    flat, middle = values.reshape(len(values), -1).double(), center.reshape(-1).double()
    for _ in range(CLIPPING_STEPS):
        apart = flat - middle
        distance = apart.norm(dim=1).clamp(min=TINY)
        limit = float(distance.median()) if radius is None else radius
        middle = middle + (apart * (limit / distance).clamp(max=1)[:, None]).mean(0)
    return middle.to(values.dtype).view(values.shape[1:])


def agreement(values: Tensor, heard: Tensor | None = None) -> Tensor:
    """(clients,) the cosine of each client's change with the mean direction of the others.

    Those who point elsewhere are not asked: the cosines are computed a second time without them. Where most do not
    agree, clients that say the same share one vote, since a few that act together outweigh many that differ.

    Args:
        values: (clients, ...).
        heard: (clients,) bool: whose direction counts; None: everyone's.
    """
    unit = _directions(values)
    votes = torch.ones(len(unit), dtype=torch.float64) if heard is None else heard.double()
    found = _cosines(unit, votes)
    if len(found) >= 3 and float(found.median()) < CLEAR / 2:
        votes = votes / ((unit @ unit.T) > SAME).sum(1).clamp(min=1)
        found = _cosines(unit, votes)
    return _cosines(unit, votes * ~points_elsewhere(found))


def opposed(values: Tensor) -> Tensor:
    """(clients,) bool: a minority that works against a majority that agrees with itself.

    A mean is no centre to compare with where a third of the clients is reversed. The first principal direction is: its
    sign is arbitrary, so it separates those who go one way from those who go the other, and the larger group counts as
    right. As a model converges, honest clients drift apart as well, but then no group agrees with itself. So both must
    be clear: how far the groups are apart, and how much the larger one agrees.
    """
    unit = _directions(values)
    nobody = torch.zeros(len(unit), dtype=torch.bool)
    if len(unit) < 4:
        return nobody
    cosines = unit @ unit.T  # (clients, clients)
    votes = 1 / (cosines > SAME).sum(1).clamp(min=1)  # those who say the same share one vote
    root = votes.sqrt()
    few = torch.linalg.eigh(root[:, None] * cosines * root).eigenvectors[:, -1] > 0
    few = few if 2 * int(few.sum()) <= len(few) else ~few
    if not 0 < int(few.sum()) <= most_hostile(len(few)):
        return nobody
    found = _cosines(unit, votes * ~few)
    apart, united = float(cosines[few][:, ~few].mean()), float(found[~few].median())
    return few & (found < 0) if united > UNITED and apart * united < -OPPOSITION else nobody


def _directions(values: Tensor) -> Tensor:
    flat = values.reshape(len(values), -1).double()
    return flat / flat.norm(dim=1, keepdim=True).clamp(min=TINY)


def _cosines(unit: Tensor, votes: Tensor) -> Tensor:
    weighted = unit * votes[:, None]
    others = weighted.sum(0, keepdim=True) - weighted
    return (unit * others).sum(1) / others.norm(dim=1).clamp(min=TINY)


def points_elsewhere(scores: Tensor) -> Tensor:
    """(clients,) bool: whose agreement with the others is as negative as that of most is positive, or nearly so.

    Needs three clients. Clients with different classes agree little, so a cosine near zero is no reason for suspicion.
    Where most clients do not agree with each other, nobody is suspected.
    """
    typical = scores.median() if len(scores) >= 3 else scores.new_zeros(())
    if typical < CLEAR / 2:
        return torch.zeros(len(scores), dtype=torch.bool)
    apart = scores < -max(AGREES * float(typical), CLEAR)
    return apart if int(apart.sum()) <= most_hostile(len(scores)) else torch.zeros_like(apart)


def silent(norms: Tensor) -> Tensor:
    """(clients,) bool: who moved next to nothing while most moved, as one does who sends back what it received."""
    typical = norms.median()
    return (norms < SILENT * typical) if typical > 0 else torch.zeros(len(norms), dtype=torch.bool)


def noisy(norms: Tensor, scores: Tensor) -> Tensor:
    """(clients,) bool: who moved further than most, in a direction that has nothing in common with the others'.

    A party with classes of its own agrees little too, but moves as far as the others do. Where most clients do not
    agree with each other, nobody is suspected.
    """
    if len(scores) < 3 or scores.median() < CLEAR / 2:
        return torch.zeros(len(scores), dtype=torch.bool)
    return (norms > LOUD * norms.median()) & (scores < CLEAR / 2)
