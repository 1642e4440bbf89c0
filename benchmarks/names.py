"""Do label names help? FedAlign with class vectors from names, from permuted names and at random.

python benchmarks/names.py run --out FOLDER          resumes: a run that is there is not repeated
python benchmarks/names.py table --out FOLDER
python benchmarks/names.py figure --out FOLDER --to names.svg
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch

from fedalign import config
from fedalign.labels import vectors
from fedalign.labels.settings import Labels
from fedalign.randomness import numpy_generator
from fedalign.runs import experiment

SMALL = (
    "encoder.dim=64",
    "encoder.feedforward=32",
    "encoder.dropout=0.1",
    "training.epochs=3",
    "training.lr=0.003",
    "engine.workers=1",
)
SETTINGS: dict[str, tuple[str, int, tuple[str, ...]]] = {  # preset, rounds, changes
    "R8-8": ("r8-8", 12, SMALL),
    "ES-25": ("es-25", 15, ("training.epochs=2", "engine.workers=1")),
    "DSADS-8": ("dsads-8", 10, SMALL),
    "OHSUMED-10": ("ohsumed-10", 10, SMALL),
    "R8-8, one party per round": ("r8-8", 24, (*SMALL, "clients_per_round=1")),
}
SOURCES = ("counts", "sentence", "adapter", "permuted", "random")
SEEDS = (4321, 4322, 4323)
COLOURS = {"counts": "#0072b2", "sentence": "#009e73", "adapter": "#e69f00", "permuted": "#d55e00", "random": "#999999"}
MARKS = {"counts": "o", "sentence": "s", "adapter": "D", "permuted": "x", "random": "^"}


def permuted(names: list[str], seed: int, path: Path) -> Path:
    """The sentence model's vectors, none of them at its own class."""
    found = vectors.make(names, 256, Labels(source="sentence"), seed)
    order = numpy_generator(seed, "permuted names").permutation(len(names))
    moved = torch.empty_like(found)
    moved[order] = found[torch.from_numpy(order).roll(1)]  # a cycle over all classes
    vectors.write_vectors(path, names, moved, {"source": "sentence, permuted"})
    return path


def changes(setting: str, source: str, seed: int, folder: Path) -> list[str]:
    preset, _, more = SETTINGS[setting]
    found = list(more)
    if source == "counts":
        return found
    if source == "adapter":
        return [*found, "labels.source=sentence", "labels.file=", "labels.adapter=true"]
    if source != "permuted":
        return [*found, f"labels.source={source}", "labels.file="]
    names = list(experiment.plan(config.load(preset, found, seed=seed)).federation.label_names)
    return [*found, "labels.source=vectors", f"labels.file={permuted(names, seed, folder / 'permuted.safetensors')}"]


def run(out: Path, only: str) -> None:
    torch.set_num_threads(1)
    for setting, (preset, rounds, _) in SETTINGS.items():
        for seed in SEEDS:
            for source in SOURCES:
                folder = out / setting.replace(", ", "-").replace(" ", "-") / f"{source}-{seed}"
                done = folder / "score.json"
                if done.is_file() or only not in setting:
                    continue
                folder.mkdir(parents=True, exist_ok=True)
                settings = config.load(preset, changes(setting, source, seed, folder), rounds=rounds, seed=seed)
                experiment.run(settings, folder / "run", resume=(folder / "run" / "config.toml").is_file())
                lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
                scores = [json.loads(line)["f1"] for line in lines]
                score = {"setting": setting, "source": source, "seed": seed, "f1": scores}
                done.write_text(json.dumps(score))
                print(f"{setting}, {source}, seed {seed}: F1 {100 * scores[-1]:.1f}", flush=True)


def scores(out: Path) -> dict[str, dict[str, dict[int, float]]]:
    """Mean F1 of the last three rounds, by setting, source and seed."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for path in sorted(out.glob("*/*/score.json")):
        score = json.loads(path.read_text())
        last = 100 * statistics.mean(score["f1"][-3:])
        found.setdefault(score["setting"], {}).setdefault(score["source"], {})[score["seed"]] = last
    return {setting: found[setting] for setting in SETTINGS if setting in found}


def table(out: Path) -> None:
    print("| | " + " | ".join(SOURCES) + " | sentence minus permuted, by seed |")
    print("|---" * (len(SOURCES) + 2) + "|")
    for setting, by_source in scores(out).items():
        cells = []
        for source in SOURCES:
            values = list(by_source.get(source, {}).values())
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{spread}" if values else "")
        named, moved = by_source.get("sentence", {}), by_source.get("permuted", {})
        cells.append(
            ", ".join(f"{named[seed] - moved[seed]:+.1f}" for seed in SEEDS if seed in named and seed in moved)
        )
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
