"""The methods of the paper's tables and others beyond them: what each changes in a preset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Method:
    """A method: its title, and the settings that it changes in a preset."""

    title: str
    settings: dict[str, Any] = field(default_factory=dict)
    follows_rates: bool = False  # trains at both of the preset's rates; other methods are tried at each


NO_NAMES = {"source": "random", "file": ""}  # for methods that do not use label names


def _method(title: str, algorithm: str, **options: Any) -> Method:
    return Method(title, {"algorithm": {"name": algorithm, **options}, "labels": NO_NAMES})


def _fedalign(title: str, **options: Any) -> Method:
    return Method(title, {"algorithm": {"name": "fedalign", **options}}, follows_rates=True)


METHODS: dict[str, Method] = {
    "fedavg": _method("FedAvg", "fedavg"),
    "fedprox-0.001": _method("FedProx (mu=0.001)", "fedprox", mu=0.001),
    "fedprox-0.0001": _method("FedProx (mu=0.0001)", "fedprox", mu=0.0001),
    "moon": _method("MOON", "moon"),
    "scaffold": _method("Scaffold", "scaffold"),
    "fedpu": _method("FedPU", "fedpu"),
    "fedrs-0.5": _method("FedRS (alpha=0.5)", "fedrs", alpha=0.5),
    "fedrs-0.9": _method("FedRS (alpha=0.9)", "fedrs", alpha=0.9),
    "fedalign": _fedalign("FedAlign"),
    # ablations
    "fedalign-no-alignment": _fedalign("FedAlign w/o AL", alignment=False),
    "fedalign-no-semantics": _method(
        "FedAlign w/o SE", "fedalign", semantics="none", alternating=False, average_over_owners=False
    ),
    "fedalign-random-names": _fedalign("FedAlign, random rows", semantics="random"),
    "fedalign-no-alternation": _fedalign("FedAlign w/o AT", alternating=False),
    # beyond the paper
    "analytic": Method("analytic", {"algorithm": {"name": "analytic"}, "labels": NO_NAMES}, follows_rates=True),
    "fedavg-owner-rows": _method("FedAvg + owner rows", "fedavg", average_over_owners=True),
    "fedavg-complement": _method("FedAvg + complement", "fedavg", complement=True),
    "fedavg-both": _method("FedAvg + owner rows + complement", "fedavg", average_over_owners=True, complement=True),
    "fedalign-complement": _fedalign("FedAlign + complement", complement=True),
    "fedalign-plus": Method("FedAlign-plus", {"algorithm": {"name": "fedalign-plus"}}, follows_rates=True),
    # newer methods
    "fedadam": _method("FedAdam", "fedopt", rule="adam"),
    "fedyogi": _method("FedYogi", "fedopt", rule="yogi"),
    "fedvls": _method("FedVLS", "fedvls"),
    "fedgela": _method("FedGELA", "fedgela"),
    "fedtsp": Method("FedTSP", {"algorithm": {"name": "fedtsp"}}),
    "fedlsm": _method("FedLSM", "fedlsm"),
    "fedmlp": _method("FedMLP", "fedmlp"),
    "centralised": Method(
        "centralised",
        {
            "algorithm": {"name": "fedavg"},
            "labels": NO_NAMES,
            "partition": {"kind": "centralised"},
            "clients_per_round": 1,
            "min_clients": 1,
            "training": {"epochs": 1},
        },
    ),
}

ONE_TASK = ("fedvls", "fedtsp", "fedlsm", "fedmlp")  # methods that refuse data of the other task

GROUPS: dict[str, list[str]] = {
    "table2": list(METHODS)[:9],
    "table3": ["fedavg", "fedalign-no-alignment", "fedalign-no-semantics", "fedalign-no-alternation", "fedalign"],
    "all": [name for name in METHODS if name not in ONE_TASK],
    "quick": ["analytic", "fedavg", "fedalign"],
}
