"""What one party's message tells about its rows in gradient methods: words of texts, rows of tables, windows of series.

    python benchmarks/inversion.py r8-8
    python benchmarks/inversion.py synthetic --set dataset.kind=features --set encoder.name=mlp --set training.epochs=5

The attacks are those of `fedalign audit` (diagnosis/inversion.py), on the first parties of a preset.
"""

from __future__ import annotations

import argparse

from fedalign import config
from fedalign.diagnosis import inversion
from fedalign.diagnosis.audit import first_message
from fedalign.runs import experiment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--parties", type=int, default=3)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    plan = experiment.plan(config.load(options.preset, [f"algorithm.name={options.algorithm}", *options.set]))
    for client in range(options.parties):
        told = first_message(plan, client)
        if "words" in told:
            print(f"{told['party']}: {told['words']} words, {told['shown']} shown by its update, {told['right']} right")
        found = inversion.rows(plan, client)
        if found is not None:
            for name in ("one_step", "visit"):
                one = found[name]
                print(
                    f"{told['party']}, {name} of {found['rows']} rows ({found['epochs']} epochs): {one['exact']} "
                    f"in the first layer, {one['found']} by optimisation, {found['chance']} by chance"
                )


if __name__ == "__main__":
    main()
