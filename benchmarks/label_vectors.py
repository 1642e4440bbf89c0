"""Time to turn counts into vectors, and agreement of our expected skip-gram with gensim's sampled one.

pip install gensim
python -m benchmarks.label_vectors --counts extrasensory
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time

import numpy as np
import torch
from scipy.stats import spearmanr

from fedalign.labels import counts, graph, vectors
from fedalign.labels.settings import Labels
from fedalign.randomness import numpy_generator

DIM = 256


def ours(weights: np.ndarray, seed: int) -> np.ndarray:
    return vectors.from_graph(weights, DIM, Labels(), seed).numpy()


def gensims(weights: np.ndarray, seed: int) -> np.ndarray:
    """Trains as the published code does: the same walks as sentences, gensim's skip-gram at its default rate."""
    from gensim.models import Word2Vec

    paths = graph.walks(weights, Labels().walk_length, Labels().walks, numpy_generator(seed, "walks"))
    model = Word2Vec(
        [[str(node) for node in path] for path in paths.tolist()],
        vector_size=DIM,
        window=Labels().window,
        min_count=1,
        sg=1,
        negative=5,
        epochs=5,
        workers=1,
        seed=seed,
    )
    return np.stack([model.wv[str(node)] for node in range(len(weights))])


def upper(rows: np.ndarray, connected: np.ndarray) -> np.ndarray:
    """Returns the cosines of all pairs of names that are connected in the graph."""
    found = vectors.cosines(torch.from_numpy(rows[connected])).numpy()
    return found[np.triu_indices(len(found), 1)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--counts", nargs="+", default=["extrasensory", "mimic3"])
    options.add_argument("--repeat", type=int, default=5)
    options.add_argument("--without-gensim", action="store_true")
    given = options.parse_args()
    torch.set_num_threads(1)
    for source in given.counts:
        taken, used, digests = [], [], set()
        for _ in range(given.repeat):
            began, before = time.perf_counter(), time.process_time()
            names = vectors.counted_names(source)
            rows = vectors.make(names, DIM, Labels(source="counts", file=source), 4321)
            taken.append(time.perf_counter() - began)
            used.append(time.process_time() - before)
            digests.add(hashlib.sha256(rows.numpy().tobytes()).hexdigest())
        print(
            f"{source}: {len(names)} names, counts to vectors in {statistics.median(taken):.2f} s "
            f"({statistics.median(used):.2f} s of a processor, medians of {len(taken)}), "
            f"{len(digests)} different result(s), SHA-256 {min(digests)[:12]}"
        )
        if given.without_gensim:
            continue
        weights = graph.edges(counts.read(source).pmi(Labels().smoothing), "paper")
        connected = ~graph.isolated(weights)
        began = time.perf_counter()
        mine = [ours(weights, seed) for seed in (1, 2)]
        middle = time.perf_counter()
        theirs = [gensims(weights, seed) for seed in (1, 2)]
        ended = time.perf_counter()
        print(f"  ours {(middle - began) / 2:.2f} s, gensim {(ended - middle) / 2:.2f} s per run, one thread each")
        for what, one, other in (
            ("ours, seed 1 and 2", mine[0], mine[1]),
            ("gensim, seed 1 and 2", theirs[0], theirs[1]),
            ("ours and gensim, seed 1", mine[0], theirs[0]),
        ):
            a, b = upper(one, connected), upper(other, connected)
            print(
                f"  {what:24s} cosines: rank correlation {spearmanr(a, b).statistic:.3f}, "
                f"mean difference {np.abs(a - b).mean():.3f}, means {a.mean():.3f} and {b.mean():.3f}"
            )


if __name__ == "__main__":
    main()
