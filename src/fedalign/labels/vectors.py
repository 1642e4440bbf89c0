"""Makes one vector per label, from walks over the label graph (skip-gram in expectation) or from another source.

There are few labels (tens, seldom hundreds), so the pairs within a window along the walks fit in a C x C table of
counts, and the sum over sampled negatives in another. Training then follows the mean of skip-gram's gradient with its
usual decaying rate, in steps small enough to be stable: the same objective without sampling noise, in a second.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from fedalign.errors import UserError
from fedalign.labels import choose, counts, graph, sentence
from fedalign.labels import names as label_names
from fedalign.randomness import numpy_generator, torch_generator
from fedalign.system.cores import one_thread
from fedalign.system.files import write_atomically

if TYPE_CHECKING:
    from fedalign.labels.settings import Labels

NEGATIVES = 5  # per observed pair
EPOCHS = 5
RATE, LAST_RATE = 0.025, 0.0001
UNREADABLE = (OSError, EOFError, ValueError, TypeError, KeyError, IndexError, RuntimeError)
LARGEST_STEP = 1.0  # of rate times count; four times smaller steps change no cosine by more than 0.003
FORMAT = 1  # of files of vectors


def make(names: Sequence[str], dim: int, how: Labels, seed: int) -> Tensor:
    """Returns the initial class vectors (C, dim), the same for the same seed in any process."""
    how = choose.resolved(names, how)
    if how.source == "random":
        return torch.empty(len(names), dim).normal_(generator=torch_generator(seed, "label vectors"))
    if how.source == "sentence":
        with one_thread():
            found = sentence.vectors(names, how.file, described(how.descriptions), how.phrase)
        return fit_width(found, dim, seed)
    if not how.file:
        raise UserError(f"labels.source = {how.source!r} needs labels.file, the path of the {how.source} file")
    path = Path(how.file).expanduser()
    if how.source == "vectors":
        return fit_width(read_vectors(path, names), dim, seed)
    return from_graph(graph.edges(table(names, how), how.reading), dim, how, seed)


def table(names: Sequence[str], how: Labels) -> np.ndarray:
    """Returns (C, C) the association of each pair of names, from counts or from a table."""
    if how.source == "table":
        return graph.read_table(Path(how.file).expanduser(), names)
    counted = counts.read(how.file)
    chosen = counted.chosen(names, how.file)
    there = np.array([place is not None for place in chosen])
    numbers = np.array([place or 0 for place in chosen])
    return np.where(np.outer(there, there), counted.pmi(how.smoothing)[np.ix_(numbers, numbers)], np.nan)


def counted_names(source: str) -> list[str]:
    """Returns the names in a file of counts."""
    return counts.read(source).rule.names


def notes(names: Sequence[str], how: Labels) -> dict[str, Any]:
    """Returns facts about vectors of this source, which are stored with them and shown by `labels show`."""
    if how.source != "counts":
        return {"source": how.source}
    counted = counts.read(how.file)
    chosen = counted.chosen(names, how.file)
    without_edge = graph.isolated(graph.edges(table(names, how), how.reading))
    little = set(counted.little())
    return {
        "source": "counts",
        "corpora": [corpus.about for corpus in counted.corpora],
        "counts": [0 if i is None else counted.counts[i] for i in chosen],
        "isolated": [name for name, found in zip(names, without_edge, strict=True) if found],
        "says_little": [
            name for name, i in zip(names, chosen, strict=True) if i is None or counted.rule.names[i] in little
        ],
    }


def isolated_names(names: Sequence[str], how: Labels) -> list[str]:
    """Returns the names without an edge in the label graph, whose vectors are random."""
    return list(notes(names, how).get("isolated", []))


def cosines(rows: Tensor) -> Tensor:
    """Returns the cosine similarities (C, C)."""
    unit = torch.nn.functional.normalize(rows, dim=1)
    return unit @ unit.T


def described(source: str) -> dict[str, list[str]]:
    """Returns descriptions by name, from a file of names or from the search words of shipped counts."""
    if not source:
        return {}
    if source in counts.shipped():
        rule = counts.read(source).rule
        return {name: [" ".join(way.words) for way in ways] for name, ways in zip(rule.names, rule.ways, strict=True)}
    return label_names.read_names(Path(source).expanduser())[1]


def from_graph(weights: np.ndarray, dim: int, how: Labels, seed: int) -> Tensor:
    """Returns vectors (C, dim) from random walks over a graph with these edge weights (C, C)."""
    rng = numpy_generator(seed, "walks")
    paths = graph.walks(weights, how.walk_length, how.walks, rng)
    found = skip_gram(pair_counts(paths, len(weights), how.window), dim, seed)
    isolated = torch.from_numpy(graph.isolated(weights))
    if how.reading == "paper" and bool(isolated.any()):
        found[isolated] = ordinary_norm(found, isolated, seed)
    return found


def pair_counts(paths: np.ndarray, labels: int, window: int) -> np.ndarray:
    """Returns (C, C) how often two labels share a window. Skip-gram shrinks it at random, so near pairs count more."""
    counts = np.zeros((labels, labels))
    for distance in range(1, min(window, paths.shape[1] - 1) + 1):
        pairs = paths[:, :-distance].ravel() * labels + paths[:, distance:].ravel()
        together = np.bincount(pairs, minlength=labels * labels).reshape(labels, labels)
        counts += (together + together.T) * (window - distance + 1) / window
    return counts


def skip_gram(counts: np.ndarray, dim: int, seed: int) -> Tensor:
    """Returns the input vectors (C, dim) of skip-gram with negative sampling for these pair counts."""
    C = len(counts)
    positive = torch.from_numpy(counts).float() * EPOCHS  # (C, C)
    frequency = positive.sum(1)
    chance = frequency**0.75
    chance = chance / chance.sum()
    # negatives that happen to be the word itself are skipped, as word2vec does
    negative = NEGATIVES * (frequency.view(-1, 1) - positive) * chance.view(1, -1)
    first = torch.empty(C, dim).uniform_(-0.5 / dim, 0.5 / dim, generator=torch_generator(seed, "skip-gram"))
    # a decaying rate only sets the pace along the mean gradient, so equal steps of its average follow the same path
    # with half as many steps
    rate = (RATE + LAST_RATE) / 2
    steps = max(100, int(rate * float((positive + negative).sum(1).max()) / LARGEST_STEP))
    with one_thread(), torch.inference_mode():
        # every update is a combination of the first vectors, so C coordinates in their span are enough
        basis, coordinates = torch.linalg.qr(first.T)
        vectors, contexts = coordinates.T.contiguous(), torch.zeros(C, coordinates.shape[0])
        both = positive + negative
        for _ in range(steps):
            # positive * (1 - p) - negative * p
            gradient = torch.mm(vectors, contexts.T).sigmoid_().mul_(both).neg_().add_(positive).mul_(rate / steps)
            change = torch.mm(gradient.T, vectors)
            vectors.addmm_(gradient, contexts)
            contexts.add_(change)
        vectors = vectors @ basis.T
    return vectors.clone()


def ordinary_norm(vectors: Tensor, isolated: Tensor, seed: int) -> Tensor:
    """Returns random vectors for isolated labels, with the mean length of the others."""
    random = torch.empty(int(isolated.sum()), vectors.shape[1]).normal_(generator=torch_generator(seed, "isolated"))
    others = vectors[~isolated]
    norm = others.norm(dim=1).mean() if len(others) else torch.tensor(1.0)
    return random / random.norm(dim=1, keepdim=True) * norm


def read_vectors(path: Path, names: Sequence[str]) -> Tensor:
    """Returns vectors by name from a file of `labels vectors`, safetensors with one array per label, or NPZ with
    `names` and `vectors`."""
    available, rows = stored(path)
    found = label_names.places(names, available)
    missing = [name for name, place in zip(names, found, strict=True) if place is None]
    if missing:
        raise UserError(f"{path} has no vector for {', '.join(missing)}")
    return rows[torch.tensor([place for place in found if place is not None])]


def stored(path: Path) -> tuple[list[str], Tensor]:
    """Returns all names and vectors of a file."""
    try:
        names, rows = _arrays(path)
    except (*UNREADABLE, SafetensorError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"cannot read label vectors from {path}: {error}") from error
    if rows.dim() != 2 or len(rows) != len(names):
        raise UserError(
            f"{path} has {len(names)} names and vectors of shape {tuple(rows.shape)}; give one vector per name"
        )
    broken = [name for name, fine in zip(names, rows.isfinite().all(1).tolist(), strict=True) if not fine]
    if broken:
        raise UserError(f"{path}: the vector of {', '.join(broken)} holds NaN or infinity; make it again")
    return names, rows


def _arrays(path: Path) -> tuple[list[str], Tensor]:
    if path.suffix == ".npz":
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return list(map(str, arrays["names"])), torch.from_numpy(arrays["vectors"]).float()
    about = facts(path)
    arrays = load_file(path)
    if about:
        return list(about["names"]), arrays["vectors"].float()
    return list(arrays), torch.stack([vector.float() for vector in arrays.values()])


def facts(path: Path) -> dict[str, Any]:
    """Returns the facts that `write_vectors` stored with the vectors; empty for files of other programs."""
    if path.suffix == ".npz":
        return {}
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
    if "fedalign" not in metadata:
        return {}
    found: dict[str, Any] = json.loads(metadata["fedalign"])
    if found.get("format") != FORMAT:
        raise UserError(
            f"{path} has the format {found.get('format')!r:.80}, which this version does not know; update fedalign, or "
            "make the vectors again with `fedalign labels vectors`"
        )
    return found


def write_vectors(path: Path, names: Sequence[str], rows: Tensor, noted: Mapping[str, Any]) -> None:
    """Writes vectors to a safetensors file. Names are untrusted, so they are metadata and not names of arrays. Equal
    vectors give equal bytes."""
    text = json.dumps({"format": FORMAT, "names": list(names), **noted}, ensure_ascii=False)
    write_atomically(path, save({"vectors": rows.contiguous()}, metadata={"fedalign": text}))


def fit_width(vectors: Tensor, dim: int, seed: int) -> Tensor:
    """Returns the vectors in another width, mapped by a random orthogonal matrix, which keeps angles (approximately if
    the vectors become narrower)."""
    width = vectors.shape[1]
    if width == dim:
        return vectors
    with one_thread():
        mapped = vectors @ _columns(width, dim, seed)
    return mapped * (width / dim) ** 0.5 if width > dim else mapped


def _columns(width: int, dim: int, seed: int) -> Tensor:
    """Returns (width, dim) a part of a random orthogonal matrix."""
    wide = max(dim, width)
    square = torch.empty(wide, wide).normal_(generator=torch_generator(seed, "width"))
    with one_thread():
        return torch.linalg.qr(square).Q[:width, :dim]


def adapter(names: Sequence[str], dim: int, how: Labels, seed: int) -> tuple[Tensor, Tensor]:
    """Returns fixed vectors of the names (C, k), and a matrix (dim, k) that makes the same class vectors of them as
    `make` does."""
    if how.source != "sentence":
        raise UserError(f"labels.adapter needs labels.source = 'sentence', not {how.source!r}; set it")
    with one_thread():
        found = sentence.vectors(names, how.file, described(how.descriptions), how.phrase)
    width = found.shape[1]
    if width == dim:
        return found, torch.eye(dim)
    return found, _columns(width, dim, seed).T * (width / dim if width > dim else 1.0) ** 0.5
