"""What estimated class priors cost in multi-label analytic learning.

    python benchmarks/priors.py PRESET --seeds 4326 4327 [--set a.b=c ...]

The scores of one solution, cut in three ways: as the method does, so that each class is predicted for its true share of
test rows, and at each class's best threshold on test rows. The last two are upper lines, not methods.
"""

from __future__ import annotations

import argparse

import torch
from analytic import ended
from torch import Tensor

from fedalign import config
from fedalign.learning import metrics
from fedalign.learning.analytic import priors
from fedalign.learning.analytic.client import Features
from fedalign.learning.analytic.state import share_by_class
from fedalign.learning.analytic.sums import with_constant
from fedalign.runs import experiment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="A.B=C")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| seed | omega | penalty | estimated | true priors | best |\n|---|---|---|---|---|---|")
    for seed in given.seeds:
        settings = ["algorithm.name=analytic", f"seed={seed}", *given.settings]
        plan = experiment.plan(config.load(given.preset, settings))
        server = ended(plan)
        test, weights = plan.federation.test, server.state["best"]
        model = plan.model.clone().load(server.weights)
        scores = torch.cat([with_constant(z) @ weights.T for z in Features(model, test.x)])  # (n, C)
        validation, training = server.state["counts"]
        estimated = priors.estimate(validation, training, share_by_class(server))
        share = priors.predicted_share(validation, training, estimated)
        cuts = {
            "estimated": priors.thresholds((validation + training).sum(1), share),
            "true priors": share_cut(scores, test.y, test.known),
            "best": best_cut(scores, test.y, test.known),
        }
        found = [metrics.scores(metrics.count(scores > cut, test.y, test.known), "multi").f1 for cut in cuts.values()]
        chosen = [f"{float(server.state[name]):g}" for name in ("omega", "penalty")]
        print("|", " | ".join([str(seed), *chosen, *(f"{100 * f1:.2f}" for f1 in found)]), "|", flush=True)


def share_cut(scores: Tensor, y: Tensor, known: Tensor) -> Tensor:
    """(C,) the score that as many rows exceed as have the class."""
    share = ((y > 0) & known).sum(0) / known.sum(0).clamp(min=1)
    rows = (share * len(scores)).round().long().clamp(1, len(scores) - 1)
    return scores.sort(0, descending=True).values.gather(0, rows[None])[0]


def best_cut(scores: Tensor, y: Tensor, known: Tensor) -> Tensor:
    """(C,) the threshold with the highest F1 of each class."""
    found = torch.full((scores.shape[1],), torch.inf, dtype=scores.dtype)
    for c in range(scores.shape[1]):
        order = scores[:, c].argsort(descending=True)
        yes, counted = ((y[order, c] > 0) & known[order, c]).double(), known[order, c].double()
        f1 = 2 * yes.cumsum(0) / (counted.cumsum(0) + yes.sum()).clamp(min=1)
        place = min(int(f1.argmax()) + 1, len(order) - 1)
        found[c] = scores[order[place], c]
    return found


if __name__ == "__main__":
    main()
