"""Softmax over some of very many classes: those of a batch, and a sample of the others that stands for all of them.

A batch of n rows has n x C logits, which is most of the work with 100,000 classes. Here S classes are drawn without
replacement from the N that no row of the batch has. Each drawn class counts N / S times in the sum of the softmax,
which is then right on average (the log-Q correction of Jean et al., ACL 2015, for a uniform sample).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from fedalign.randomness import KeyedRandom
from fedalign.sparse_labels import YesLists, columns_of
from fedalign.types import Examples


def classes_in(batch: Examples) -> Tensor:
    """The classes that some row of the batch has, sorted."""
    y = batch.stored("y")
    return y.classes.unique() if isinstance(y, YesLists) else (batch.y > 0).any(0).nonzero().flatten()


def draw(present: Tensor, classes: int, count: int, noise: KeyedRandom) -> Tensor:
    """`count` of the classes that are not present, which are sorted; in any order."""
    places = torch.from_numpy(noise.generator.choice(classes - len(present), size=count, replace=False))
    # the k-th absent class is k plus the number of present classes before it
    return places + torch.searchsorted(present - torch.arange(len(present)), places, right=True)


def narrowed(batch: Examples, count: int, noise: KeyedRandom) -> tuple[Examples, Tensor, Tensor] | None:
    """(the batch with the labels of some classes only, those classes (k,) sorted, what is added to their logits (k,)).
    None if `count` covers all classes."""
    classes = len(batch.classes)
    present = classes_in(batch)
    absent = classes - len(present)
    if count >= absent:
        return None
    drawn = draw(present, classes, count, noise)
    chosen, order = torch.cat([present, drawn]).sort()
    shift = torch.zeros(len(chosen))
    shift[order >= len(present)] = math.log(absent / count)
    y, known = (columns_of(batch.stored(name), chosen) for name in ("y", "known"))
    weight = None if batch.weight is None else batch.weight[:, chosen]
    return replace(batch, y=y, known=known, classes=batch.classes[chosen], weight=weight), chosen, shift
