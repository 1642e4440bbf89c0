"""Accuracy of classes that no party labelled: each class in turn is left out of training and added afterwards.

    python benchmarks/new_class.py r8-8 --rounds 6 --source r8 [--source sentence]

Prints, as a mean over the classes: AUC (do the new class's own rows rank first; 0.5 is chance) and F1 of the new class
among all classes on the test rows, for a random row, a row from the name alone, from 5 and 20 examples, from both.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import numpy as np
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torch import Tensor

from fedalign import config
from fedalign.inference import new_class
from fedalign.labels import vectors
from fedalign.learning.model import DualEncoder
from fedalign.learning.rounds import rounds
from fedalign.registry import build
from fedalign.runs import experiment
from fedalign.types import Examples, Federation, take


def without(data: Examples, c: int) -> Examples:
    """Returns the rows without the class: rows of this class lose their label."""
    keep = [i for i in range(len(data.classes)) if i != c]
    known = data.known & ~(data.y[:, c : c + 1] > 0)
    return replace(data, y=data.y[:, keep], known=known[:, keep], classes=data.classes[keep])


def left_out(data: Federation, c: int) -> Federation:
    parties = [replace(p, train=without(p.train, c), validation=None, test=None, truth=None) for p in data.parties]
    names = [name for i, name in enumerate(data.label_names) if i != c]
    return replace(data, label_names=names, parties=[p for p in parties if p.train.classes.any()], test=None)


def trained(settings: config.Config, data: Federation) -> DualEncoder:
    plan = experiment.plan(settings, data)
    options = build("engines", "local", settings.engine.options)
    server = plan.start()
    with options.open(plan) as engine:
        for now in rounds(plan, engine, server):
            server = now.server
    return plan.model.load(server.weights)


def scored(model: DualEncoder, z: Tensor, row: Tensor, truth: np.ndarray, c: int) -> tuple[float, float]:
    """Returns AUC and F1 of the new class, with its column moved back to its original position."""
    head = model.label_encoder
    unit = torch.nn.functional.normalize if head.normalise else (lambda rows: rows)
    logits = z @ unit(torch.cat([model.anchors(), row.view(1, -1)])).T
    new = logits[:, -1] - (torch.logsumexp(logits[:, :-1], 1) if model.task == "single" else 0)
    auc = roc_auc_score(truth == c, new.numpy())
    return auc, f1_score(truth == c, (logits.argmax(1) == logits.shape[1] - 1).numpy(), zero_division=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--source", action="append", required=True, help="counts, sentence, or a file of vectors")
    options = parser.parse_args()
    settings = config.load(options.preset, rounds=options.rounds)
    data = experiment.federation(settings)
    assert data.task == "single", "single-label presets only"
    assert data.test is not None
    truth = data.test.y.argmax(1).numpy()
    found: dict[str, list[tuple[float, float]]] = {}
    for c, name in enumerate(data.label_names):
        model = trained(settings, left_out(data, c))
        names = [n for i, n in enumerate(data.label_names) if i != c]
        with torch.no_grad():
            z = torch.cat([model.encode(take(data.test.x, part)) for part in torch.arange(len(truth)).split(256)])
        own = [(p, i) for p in data.parties for i in (p.train.y[:, c] > 0).nonzero().flatten().tolist()]
        order = np.random.default_rng(c).permutation(len(own))[:20]
        shots = [model.encode(take(own[i][0].train.x, torch.tensor([own[i][1]]))).detach() for i in order]
        random = torch.randn(len(model.anchors()[0]), generator=torch.Generator().manual_seed(c))
        starts: dict[str, Tensor | None] = {"random row": random * model.anchors().norm(dim=1).mean() / random.norm()}
        for source in options.source:
            how = new_class.labels_from(source)
            made = vectors.make([*names, name], model.anchors().shape[1], how, seed=0)
            starts[f"name ({source})"] = new_class.from_name(made, model.anchors())
        line = []
        for what, row in starts.items():
            assert row is not None
            line.append((what, scored(model, z, row, truth, c)))
        around = torch.cat([model.encode(take(p.train.x, torch.arange(25))) for p in data.parties]).detach()
        for count in (5, 20):
            if shots:
                few, first = torch.cat(shots[:count]), starts[f"name ({options.source[0]})"]
                for what, start, others in (
                    (f"{count} examples", None, None),
                    (f"{count} examples, other rows", None, around),
                    (f"name, {count} examples, other rows", first, around),
                ):
                    line.append((what, scored(model, z, new_class.fitted(model, few, start, others), truth, c)))
        for what, scores in line:
            found.setdefault(what, []).append(scores)
        print(name, *(f"{what} {auc:.2f}/{100 * f1:.0f}" for what, (auc, f1) in line), sep="  ", flush=True)
    print(f"\n| {options.preset}, {options.rounds} rounds, mean of {len(data.label_names)} classes | AUC | F1 |")
    print("|---|---|---|")
    for what, all_scores in found.items():
        auc, f1 = np.mean(all_scores, axis=0)
        print(f"| {what} | {auc:.3f} | {100 * f1:.1f} |")


if __name__ == "__main__":
    sys.exit(main())
