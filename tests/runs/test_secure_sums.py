"""Runs with `privacy.secure_sums`: the same model as from plain sums, and nothing of one party at the server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fedalign import config
from fedalign.config import Config
from fedalign.engines.local import Local, LocalEngine
from fedalign.errors import UserError
from fedalign.learning.analytic import joint
from fedalign.learning.rounds import Plan, Reply, rounds
from fedalign.runs import experiment
from fedalign.types import Server

pytest.importorskip("cryptography")
OWNERS = {"cold": "abcd", "flu": "abce", "asthma": "cde", "gout": "bde"}  # the parties that annotate each class


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = tmp_path / "clinics"
    files.mkdir()
    generator = torch.Generator().manual_seed(1)
    for party in "abcde":
        lines = ["x,y,z,label"]
        for row in range(24):
            number = row % 4
            name = list(OWNERS)[number]
            point = torch.randn(3, generator=generator) + torch.tensor([3.0 * (number == k) for k in range(3)])
            own = name if party in OWNERS[name] else "none of these"
            lines.append(",".join(f"{v:.3f}" for v in point.tolist()) + f",{own}")
        (files / f"{party}.csv").write_text("\n".join(lines) + "\n")
    return files


def asked(folder: Path, algorithm: dict[str, Any] | None = None, **privacy: Any) -> Config:
    table = {
        "rounds": 1,
        "dataset": {"name": "files", "path": str(folder), "features": "all", "label": "label", "validation": 0.2},
        "algorithm": {"name": "analytic", "penalty": 0.1, **(algorithm or {})},
        "encoder": {"name": "random_features", "features": 6},
        "privacy": {"secure_sums": True, **privacy},
    }
    return config.from_table(table)


class Vanishing(LocalEngine):
    """Clients are gone in these rounds."""

    gone: dict[int, Sequence[int]]

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        away = self.gone.get(round_number, ())
        found = super().train(server, round_number, [m for m in chosen if m not in away])
        return sorted([*found, *(Reply(m, None, "gone") for m in away if m in chosen)], key=lambda r: r.client)


def end(plan: Plan, gone: dict[int, Sequence[int]] | None = None) -> Server:
    server = plan.start()
    with Local(workers=1).open(plan) as engine:
        engine.__class__ = Vanishing
        engine.gone = gone or {}
        for now in rounds(plan, engine, server):
            server = now.server
    return server


def pooled(plan: Plan, clients: Sequence[int]) -> dict[str, torch.Tensor]:
    """The sums in the common form, added without masks."""
    from fedalign.learning.analytic.client import Part
    from fedalign.learning.analytic.sums import sums

    form, found = joint.form_of(plan.federation.classes, "single"), []
    for m in clients:
        data = joint.with_common_labels(plan.federation.parties[m].train, "single")
        found.append(joint.common_sums(sums(Part(plan.model, data).features, data.y, data.known), form, m))
    return {name: torch.stack([one[name] for one in found]).sum(0) for name in ("grams", "class_sums")}


def test_the_server_gets_the_sum_and_the_model_of_plain_sums(folder: Path) -> None:
    plan = experiment.plan(asked(folder))
    server = end(plan)
    expected = pooled(plan, range(5))
    for name, value in expected.items():
        assert torch.allclose(server.state[f"sums/0/{name}"], value, rtol=0, atol=5 * 2.0**-33), name
    assert plan.algorithm.finished(server)
    assert plan.algorithm.summary(server)["secure_sums"] == {"threshold": 4, "exchanges": 6}
    assert not any(name.startswith(("sums/1", "secure/masked")) for name in server.state)


@pytest.mark.parametrize(("round_number", "gone"), [(1, [1]), (2, [1]), (3, [1]), (4, [1])])
def test_a_party_may_vanish_in_each_round_of_the_sums(folder: Path, round_number: int, gone: list[int]) -> None:
    plan = experiment.plan(asked(folder, {"refinements": 0}, consent=["gout"]))  # party b leaves two owners
    server = end(plan, {round_number: gone})
    rest = [m for m in range(5) if round_number == 4 or m not in gone]
    for name, value in pooled(plan, rest).items():
        assert torch.allclose(server.state[f"sums/0/{name}"], value, rtol=0, atol=5 * 2.0**-33), name


def test_a_later_exchange_waits_for_a_party_whose_sums_are_in_the_total(folder: Path) -> None:
    plan = experiment.plan(
        asked(folder, {"refinements": 0}, consent=["asthma", "gout"]).model_copy(update={"rounds": 30})
    )
    head = "label_encoder.weight"
    assert torch.equal(end(plan).weights[head], end(plan, {7: [3]}).weights[head])
    with pytest.raises(UserError, match="parties 3 are missing after their sums were added"):
        end(plan, {number: [3] for number in range(5, 30)})


def test_what_a_party_sends_is_random_and_unmasked_sums_are_refused(folder: Path) -> None:
    plan = experiment.plan(asked(folder))
    server = plan.start()
    with Local(workers=1).open(plan) as engine:
        for number, now in zip(range(1, 3), rounds(plan, engine, server), strict=False):
            server = now.server
            assert now.number == number
        sent = [engine.train(server, 3, range(5)) for _ in range(2)]
    first, second = (replies[0].update.extra["masked"] for replies in sent if replies[0].update is not None)
    assert torch.equal(first, second)  # the same masks, so nothing is learned from asking again
    assert plan.algorithm.reject(sent[0][0].update) is None  # type: ignore[arg-type]
    plain = sent[0][0].update
    assert plain is not None
    plain.extra["masked"] = torch.full_like(first, 3 << 32)
    assert "its sums are not masked" in str(plan.algorithm.reject(plain))


@pytest.mark.slow
def test_noise_and_masks_together_charge_the_ledger_once(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    from fedalign.privacy import Ledger

    result = experiment.run(asked(folder, epsilon=2.0, budget=2.1), tmp_path / "run")
    assert result["chosen"]["secure_sums"]["exchanges"] == 2
    assert [len(Ledger(path).entries()) for path in sorted(folder.glob("*.ledger"))] == [1] * 5


def several(folder: Path, **privacy: Any) -> Config:
    """Rows with any number of classes: four sets of owners, which consent."""
    for party in "abcde":
        own = [name for name, owners in OWNERS.items() if party in owners]
        lines = (folder / f"{party}.csv").read_text().splitlines()[1:]
        numbers = [line.rpartition(",")[0] for line in lines]
        codes = [";".join(name for k, name in enumerate(own) if (row + k) % 3 == 0) for row in range(len(lines))]
        table = [f"{a},{b or 'none of these'}" for a, b in zip(numbers, codes, strict=True)]
        (folder / f"{party}.csv").write_text("\n".join(["x,y,z,codes", *table]) + "\n")
    found = config.as_table(asked(folder, epsilon=2.0, seeded=True, consent=list(OWNERS), **privacy))
    found["dataset"] = {**found["dataset"], "label": "", "labels": "codes"}
    return config.from_table(found)


@pytest.mark.parametrize("gone", [{}, {3: [1]}])
@pytest.mark.slow
def test_masked_noisy_sums_are_the_plain_noisy_sums_to_the_bit(folder: Path, gone: dict[int, list[int]]) -> None:
    """Several classes per row, with and without a party that vanishes before its sums: the same draws of noise, first
    as each party's own sums, then under masks. Masked numbers are multiples of 2^-32."""
    pytest.importorskip("dp_accounting")
    masked = several(folder)
    plan = experiment.plan(masked)
    assert plan.federation.task == "multi"
    server = end(plan, gone)
    plain = experiment.plan(
        masked.model_copy(update={"privacy": masked.privacy.model_copy(update={"secure_sums": False})})
    )
    alone = end(plain)
    form, expected = joint.form_of(plan.federation.classes, "multi"), {}
    rest = [m for m in range(5) if m not in gone.get(3, ())]
    for m in rest:
        own = {name: alone.state[f"sums/{m}/{name}"] for name in ("grams", "which", "class_sums")}
        for name, value in joint.common_sums(own, form, m).items():
            expected[name] = expected.get(name, 0) + (value * 2.0**32).round().to(torch.int64)
    for name, value in expected.items():
        assert torch.equal(server.state[f"sums/0/{name}"] * 2.0**32, value.double()), name
    assert len(form.owners) == 4
    if not gone:
        head = "label_encoder.weight"
        torch.testing.assert_close(server.weights[head], alone.weights[head])
        torch.testing.assert_close(server.state["noise"], alone.state["noise"])
    assert plan.algorithm.summary(server)["clients"] == rest
    assert any("the noise hides the sums of" in line for line in plan.algorithm.warnings(server, list(OWNERS)))


@pytest.mark.parametrize(
    ("algorithm", "privacy", "sentence"),
    [
        ({"balance": True}, {}, r"algorithm\.balance needs the shares of each party; remove it"),
        ({"name": "fedavg"}, {}, r"privacy\.secure_sums works with algorithm\.name = 'analytic' only"),
        ({"robust": "auto"}, {}, r"algorithm\.robust compares the sums of parties"),
        ({"keep_sums": False}, {}, r"the server has totals only; remove algorithm\.keep_sums = false"),
        ({}, {"consent": ["colt"]}, "which is no class; did you mean cold"),
        ({}, {"threshold": 2}, r"privacy\.threshold = 2 is not more than half of 5 parties"),
        ({}, {"threshold": 6}, "5 parties are left and a secure sum needs 6"),
    ],
)
def test_what_cannot_be_added_safely_is_refused(
    folder: Path, tmp_path: Path, algorithm: dict[str, Any], privacy: dict[str, Any], sentence: str
) -> None:
    table = config.as_table(asked(folder, **privacy))
    table["algorithm"] = algorithm if "name" in algorithm else {**table["algorithm"], **algorithm}
    with pytest.raises(UserError, match=sentence):
        experiment.run(config.from_table(table), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_classes_with_fewer_than_three_owners_need_consent(folder: Path, tmp_path: Path) -> None:
    (folder / "e.csv").unlink()
    with pytest.raises(UserError, match="the sums of 'asthma', 'gout' would show what fewer than three parties have"):
        experiment.run(asked(folder), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    experiment.plan(asked(folder, consent=["asthma", "gout"]))


def test_what_leaves_shows_the_masks(folder: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")
    from fedalign.flower.preview import preview

    found = preview(folder / "a.csv", asked(folder, consent=["gout"]), "a")
    assert found.num_examples == 0
    assert "once: sums over its rows, masked" in found.replies
    told = " ".join(found.table()["privacy"])
    assert "the server sees random numbers of this party, and the total of all parties" in told
    assert "consented: gout" in told


def test_sums_over_overlapping_owners_are_exposed_if_they_differ_by_one_party() -> None:
    """Multi-label: the matrices of {0, 1, 2} and {0, 1, 2, 3} differ by what party 3 has."""
    claims = torch.tensor([[1, 1], [1, 1], [1, 1], [0, 1]], dtype=torch.bool)
    assert joint.exposed(claims, "multi") == [1]
    assert joint.exposed(claims, "single") == []
    assert joint.exposed(torch.ones(4, 2, dtype=torch.bool), "multi") == []
