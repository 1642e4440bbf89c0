"""What a round of `benchmarks/peers.py` is made of in fedalign, and what its matrix products take by themselves.

    python benchmarks/peer_parts.py --folder FOLDER [--rounds 20] [--defaults]

FOLDER is that of peers.py, which must have prepared its rows. Without --defaults, clients are stacked. The products are
those of the same steps and scores, made in a loop on one thread and divided by the number of cores: no program with the
same library can be faster, whatever it spends on everything else.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent / "peer_programs"
GROUP = 5  # clients that one thread trains together


def parts(rounds: int, stacked: bool) -> dict[str, float]:
    """Median seconds of the parts of a round, by name."""
    from common import BATCH, CHOSEN, RATE, client_rows, rows

    import fedalign
    from fedalign.engines import _stacked, local
    from fedalign.learning import rounds as learning
    from fedalign.runs import folder

    spent: dict[str, list[float]] = defaultdict(list)

    def timed(owner: Any, name: str, part: str) -> None:
        plain: Callable[..., Any] = getattr(owner, name)

        def measured(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return plain(*given, **named)
            finally:
                spent[part].append(time.perf_counter() - began)

        setattr(owner, name, measured)

    timed(_stacked.StackedEngine if stacked else local.LocalEngine, "train", "training")
    timed(local.LocalEngine, "score", "scoring")
    timed(learning, "accept_replies", "checks of replies")
    timed(learning, "changes_of", "norms of changes")
    timed(learning, "clipped", "limits of changes")
    timed(learning, "with_limits", "limits of the next round")
    timed(folder.RunFolder, "save_round", "checkpoint")
    parties = {f"client {m}": part for m, part in enumerate(client_rows())}
    federation = fedalign.Federation.from_arrays(parties, test=rows("test"), validation=0.0)
    last = time.perf_counter()

    def scored(now: fedalign.Progress) -> None:
        nonlocal last
        spent["the whole round"].append(time.perf_counter() - last)
        last = time.perf_counter()

    settings = {
        "clients_per_round": CHOSEN,
        "encoder.name": "network:Encoder",
        "training.optimizer": "sgd",
        "training.lr": RATE,
        "training.batch_size": BATCH,
        "training.epochs": 1,
        "engine.stacked": stacked,
    }
    fedalign.train(federation, "fedavg", rounds, progress=False, settings=settings, callback=scored)
    return {part: statistics.median(times[1:]) for part, times in spent.items()}


def products() -> tuple[float, float]:
    """Seconds of the products of a round's training and of its scoring, on all cores."""
    from common import BATCH, CHOSEN, CLIENTS, WIDTHS, rows

    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    layers = list(pairwise(WIDTHS))
    steps = CHOSEN * -(-len(rows("train")[0]) // (CLIENTS * BATCH))
    train = score = 0.0
    for place, (wide, narrow) in enumerate(layers):
        x, weight = torch.randn(GROUP, BATCH, wide), torch.randn(GROUP, wide, narrow)
        grad = torch.randn(GROUP, BATCH, narrow)
        train += least(lambda: torch.bmm(x, weight)) + least(lambda: torch.bmm(x.mT, grad))  # noqa: B023
        if place:
            train += least(lambda: torch.bmm(grad, weight.mT))  # noqa: B023
        tested, one = torch.randn(256, wide), torch.randn(narrow, wide)
        score += least(lambda: tested @ one.T)  # noqa: B023
    torch.set_num_threads(cores)
    return train / GROUP * steps / cores, score * len(rows("test")[0]) / 256 / cores


def least(work: Callable[[], object], times: int = 200) -> float:
    """The least seconds of a piece of work."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--defaults", action="store_true", help="train one client per core instead of stacks")
    given = parser.parse_args()
    os.environ["PEERS_DATA"] = str(given.folder / "data")
    if not (given.folder / "data" / "test-y.npy").exists():
        raise SystemExit(f"{given.folder} holds no rows; run benchmarks/peers.py --folder {given.folder} first")
    sys.path.insert(0, str(HERE))
    for part, seconds in parts(given.rounds, not given.defaults).items():
        print(f"{part:28s}{seconds * 1000:8.1f} ms")
    train, score = products()
    print(f"{'products of training alone':28s}{train * 1000:8.1f} ms")
    print(f"{'products of scoring alone':28s}{score * 1000:8.1f} ms")


if __name__ == "__main__":
    main()
