"""The effect of thresholds chosen on validation rows on a finished multi-label run, compared with 0.5 everywhere.

python benchmarks/thresholds.py RUN...
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file

from fedalign import config
from fedalign.learning import metrics
from fedalign.registry import build
from fedalign.runs import experiment
from fedalign.runs.results import final_checks


def main() -> None:
    for name in sys.argv[1:]:
        settings = config.load(str(Path(name) / "config.toml")).model_copy(update={"thresholds": True})
        plan = experiment.plan(settings)
        weights = load_file(Path(name) / "model.safetensors")
        result: dict[str, dict[str, float]] = {}
        with build("engines", "local", settings.engine.options).open(plan) as engine:
            counts = engine.score(weights)
            assert counts is not None
            before = metrics.scores(counts, plan.federation.task)
            final_checks(plan, engine, replace(plan.start(), weights=weights), result, print)
        after = result["thresholds"]
        print(
            f"{name}: F1 {100 * before.f1:.2f} at 0.5, {100 * after['f1']:.2f} with thresholds; "
            f"accuracy {100 * before.accuracy:.2f}, {100 * after['accuracy']:.2f}"
        )


if __name__ == "__main__":
    main()
