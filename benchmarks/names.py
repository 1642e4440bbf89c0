"""Do label names help? FedAlign with class vectors from names, from permuted names and at random.

Documents and recordings are made into rows of a table, and the encoder is a small MLP, so that a run takes seconds.

python benchmarks/names.py run --out FOLDER          resumes: a run that is there is not repeated
python benchmarks/names.py table --out FOLDER
python benchmarks/names.py figure --out FOLDER --to names.svg
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from fedalign import config
from fedalign.data import partition
from fedalign.data.downloads import data_folder
from fedalign.datasets import ohsumed
from fedalign.engines.local import Local
from fedalign.inputs import Features, Scaling
from fedalign.labels import vectors
from fedalign.labels.settings import Labels
from fedalign.learning.rounds import rounds
from fedalign.randomness import numpy_generator
from fedalign.runs import experiment
from fedalign.system import sentence_model
from fedalign.types import Examples, Federation, Pool, Sequences

SMALL = ("encoder.name=mlp", "encoder.dim=64", "training.epochs=3", "training.lr=0.003", "engine.workers=1")
TESTED = 1000  # test rows at most
# preset, rounds, share of the training rows, changes
SETTINGS: dict[str, tuple[str, int, float, tuple[str, ...]]] = {
    "R8-8, 5 %, one party a round": ("r8-8", 30, 0.05, ("clients_per_round=1",)),
    "DSADS-8, 5 % of the rows": ("dsads-8", 15, 0.05, ()),
    "ES-25": ("es-25", 10, 0.3, ()),
    "OHSUMED-10, titles": ("ohsumed-10", 15, 0.1, ()),
    "DSADS-8": ("dsads-8", 15, 1.0, ()),
    "OHSUMED-10": ("ohsumed-10", 10, 0.5, ()),
    "R8-8, 5 % of the rows": ("r8-8", 15, 0.05, ()),
    "R8-8": ("r8-8", 15, 1.0, ()),
}
SOURCES = ("counts", "sentence", "adapter", "permuted", "random")
SEEDS = (4321, 4322, 4323)
STUDENT = 4.303  # 97.5 % of Student's distribution with two degrees of freedom
COLOURS = {"counts": "#0072b2", "sentence": "#009e73", "adapter": "#e69f00", "permuted": "#d55e00", "random": "#999999"}
MARKS = {"counts": "o", "sentence": "s", "adapter": "D", "permuted": "x", "random": "^"}


def permuted(names: list[str], seed: int, path: Path) -> Path:
    """The sentence model's vectors, none of them at its own class."""
    found = vectors.make(names, 64, Labels(source="sentence"), seed)
    order = numpy_generator(seed, "permuted names").permutation(len(names))
    moved = torch.empty_like(found)
    moved[order] = found[torch.from_numpy(order).roll(1)]  # a cycle over all classes
    vectors.write_vectors(path, names, moved, {"source": "sentence, permuted"})
    return path


def changes(source: str, names: list[str], seed: int, folder: Path) -> list[str]:
    if source == "counts":
        return []
    if source == "adapter":
        return ["labels.source=sentence", "labels.file=", "labels.adapter=true"]
    if source != "permuted":
        return [f"labels.source={source}", "labels.file="]
    return ["labels.source=vectors", f"labels.file={permuted(names, seed, folder / 'permuted.safetensors')}"]


@dataclass
class Tables:
    """Data sets as tables; the last one that was read is kept."""

    pools: dict[tuple[str, int], Pool] = field(default_factory=dict)
    read: dict[str, Tensor] = field(default_factory=dict)  # what the sentence model made of a line

    def federation(self, setting: str, seed: int) -> Federation:
        preset, _, share, more = SETTINGS[setting]
        found = config.load(preset, more, seed=seed)
        if (preset, seed) not in self.pools:
            loaded = experiment.load(found)
            assert isinstance(loaded, Pool)
            self.pools = {(preset, seed): loaded}
        pool = self.pools[preset, seed]
        lines = titles(pool, data_folder()) if "titles" in setting else None
        train = thinned(len(pool.train), share, seed)
        tested = thinned(len(pool.test), min(1.0, TESTED / len(pool.test)), 0)
        held = None if pool.validation is None else thinned(len(pool.validation), share, seed)
        words = pool.inputs.shape.size[0]
        parts: list[Examples] = []
        for place, (part, rows) in enumerate(((pool.train, train), (pool.test, tested), (pool.validation, held))):
            if part is None or rows is None:
                continue
            chosen = part.take(rows)
            assert isinstance(chosen.x, Sequences)
            x = self.embedded([lines[place][row] for row in rows]) if lines else summed(chosen.x, words)
            parts.append(replace(chosen, x=x))
        scaling = Scaling.fit(parts[0].x)  # type: ignore[arg-type]
        parts = [replace(part, x=scaling.apply(part.x).clamp(-5, 5)) for part in parts]  # type: ignore[arg-type]
        small = replace(
            pool,
            train=parts[0],
            test=parts[1],
            validation=parts[2] if len(parts) > 2 else None,
            inputs=Features(scaling=scaling),
            subject=None if pool.subject is None else pool.subject[train],
            validation_subject=None if pool.validation_subject is None else pool.validation_subject[held],
            recording=None if pool.recording is None else pool.recording[train],
            validation_recording=None if pool.validation_recording is None else pool.validation_recording[held],
        )
        return partition.divide(small, found.partition, seed)

    def embedded(self, lines: Sequence[str]) -> Tensor:
        new = sorted({line for line in lines if line not in self.read})
        if new:
            self.read |= dict(zip(new, sentence_model.embed(new, "", option=""), strict=True))
        return torch.stack([self.read[line] for line in lines])


def thinned(count: int, share: float, seed: int) -> Tensor:
    """A share of the rows, in order."""
    order = numpy_generator(seed, "names, rows").permutation(count)
    return torch.from_numpy(order[: round(share * count)]).sort().values


def summed(x: Sequences, words: int) -> Tensor:
    """One row of numbers per document or recording: log counts of words, or mean and deviation over time."""
    row = torch.repeat_interleave(torch.arange(len(x)), x.lengths)
    if not x.values.is_floating_point():
        counts = torch.zeros(len(x), words)
        counts.index_put_((row, x.values.long()), torch.ones(len(row)), accumulate=True)
        return counts.log1p()
    lengths = x.lengths.clamp(min=1)[:, None]
    mean = torch.zeros(len(x), x.values.shape[1]).index_add_(0, row, x.values) / lengths
    squares = torch.zeros_like(mean).index_add_(0, row, x.values.square()) / lengths
    return torch.cat([mean, (squares - mean.square()).clamp(min=0).sqrt()], 1)


def titles(pool: Pool, folder: Path) -> list[list[str]]:
    """The first lines of OHSUMED's abstracts: of training, test and validation rows, in the order of the pool."""
    here = ohsumed.root(folder / "ohsumed")
    assert here is not None
    assert pool.validation is not None
    files: dict[str, dict[str, Path]] = {part: {} for part in ohsumed.PARTS}
    for path in ohsumed.sources(here):
        files[path.parent.parent.name].setdefault(path.name, path)
    mine = list(files["training"].values())
    order = numpy_generator("ohsumed", "validation").permutation(len(mine))
    held = len(pool.validation)
    kept, aside = ([mine[row] for row in sorted(rows)] for rows in (order[held:], order[:held]))
    return [[title(path) for path in paths] for paths in (kept, files["test"].values(), aside)]


def title(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip().splitlines()[0]


def run(out: Path, only: str) -> None:
    torch.set_num_threads(1)
    tables = Tables()
    for setting, (preset, count, _, more) in SETTINGS.items():
        for seed in SEEDS:
            data = None
            for source in SOURCES:
                folder = out / setting.replace(", ", "-").replace(" ", "-") / f"{source}-{seed}"
                done = folder / "score.json"
                if done.is_file() or only not in setting:
                    continue
                folder.mkdir(parents=True, exist_ok=True)
                data = data or tables.federation(setting, seed)
                asked = [*SMALL, *more, *changes(source, list(data.label_names), seed, folder)]
                began = time.process_time()
                plan = experiment.plan(config.load(preset, asked, rounds=count, seed=seed), data)
                with Local(workers=1).open(plan) as engine:
                    found = [now.scores.f1 for now in rounds(plan, engine, plan.start()) if now.scores]
                score = {"setting": setting, "source": source, "seed": seed, "f1": found}
                done.write_text(json.dumps(score))
                seconds = time.process_time() - began
                print(f"{setting}, {source}, seed {seed}: F1 {100 * found[-1]:.1f}, {seconds:.0f} s", flush=True)


def scores(out: Path) -> dict[str, dict[str, dict[int, float]]]:
    """Mean F1 of the last three rounds, by setting, source and seed."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for path in sorted(out.glob("*/*/score.json")):
        score = json.loads(path.read_text())
        last = 100 * statistics.mean(score["f1"][-3:])
        found.setdefault(score["setting"], {}).setdefault(score["source"], {})[score["seed"]] = last
    return {setting: found[setting] for setting in SETTINGS if setting in found}


def difference(by_source: dict[str, dict[int, float]], one: str, other: str) -> str:
    """The mean over seeds of F1 with one source minus F1 with another, and a 95 % interval for three seeds."""
    both = by_source.get(one, {}), by_source.get(other, {})
    found = [both[0][seed] - both[1][seed] for seed in SEEDS if seed in both[0] and seed in both[1]]
    if len(found) < len(SEEDS):
        return ""
    return f"{statistics.mean(found):+.1f} ± {STUDENT * statistics.stdev(found) / len(found) ** 0.5:.1f}"


def table(out: Path) -> None:
    print("| | " + " | ".join(SOURCES) + " | sentence - permuted | sentence - random |")
    print("|---" * (len(SOURCES) + 3) + "|")
    for setting, by_source in scores(out).items():
        cells = []
        for source in SOURCES:
            values = list(by_source.get(source, {}).values())
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{spread}" if values else "")
        cells += [difference(by_source, "sentence", other) for other in ("permuted", "random")]
        print(f"| {setting} | " + " | ".join(cells) + " |")


def figure(out: Path, to: Path) -> None:
    import matplotlib.pyplot as plt

    found = scores(out)
    drawn, axes = plt.subplots(figsize=(7.2, 0.7 * len(found) + 1.2), layout="constrained")
    for row, by_source in enumerate(reversed(found.values())):
        middle = statistics.mean(by_source["random"].values())
        for place, source in enumerate(SOURCES):
            gains = [by_source[source][seed] - by_source["random"][seed] for seed in by_source.get(source, {})]
            label = source if row == 0 else None
            heights = [row + 0.26 - 0.13 * place] * len(gains)
            axes.scatter(gains, heights, color=COLOURS[source], marker=MARKS[source], s=30, label=label)
        axes.text(1.01, row, f"random: {middle:.1f}", transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.axvline(0, color="#999999", linewidth=0.8)
    axes.set_yticks(range(len(found)), list(reversed(found)))
    axes.set_xlabel("F1 above random vectors of the same seed, in points")
    drawn.legend(loc="outside upper left", ncols=5, frameon=False, fontsize=9)
    drawn.savefig(to)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "figure"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="settings whose name contains this")
    parser.add_argument("--to", type=Path, default=Path("names.svg"))
    given = parser.parse_args()
    if given.what == "run":
        run(given.out, given.only)
    elif given.what == "table":
        table(given.out)
    else:
        figure(given.out, given.to)


if __name__ == "__main__":
    main()
