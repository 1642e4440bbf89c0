"""The distilled model: sums of the teachers' labels, and the least-squares solution that they give."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedalign import config
from fedalign.learning.analytic import choose, refine
from fedalign.learning.analytic.client import TEACHER_SUMS, Stage
from fedalign.learning.analytic.solve import solve
from fedalign.learning.analytic.state import stage_of
from fedalign.learning.analytic.summary import rejection
from fedalign.learning.analytic.sums import sums, total, with_constant
from fedalign.learning.distillation import PHASE, Distillation, Phase, labelled_by, phase_of, teacher_labels
from fedalign.learning.local_training import ModelPair, train_client
from fedalign.learning.own_encoders import OWN, TAUGHT, load_own
from fedalign.learning.rounds import Plan
from fedalign.runs import experiment
from fedalign.types import Examples, Server, Update

PENALTY = 0.1
SETTINGS = [
    "rounds=1",
    "training.epochs=1",
    "encoder.dim=16",
    "encoder.distilled=true",
    "partition.clients=3",
    "clients_per_round=3",
    "dataset.rows=150",
    "encoder.parties.client-2.name=tfidf",
]


def rows(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features (n, 4) of norm below 1, one of three classes each, and which entries are known: the first class in all
    rows, the others in the rows of the first class, as if one class were annotated."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.rand(count, 4, generator=generator) / 2
    y = torch.eye(3)[torch.randint(3, (count,), generator=generator)]
    known = (y[:, :1] > 0).expand(-1, 3).clone()
    known[:, 0] = True
    return z, y, known


def test_with_true_labels_as_the_teachers_the_student_is_the_solution_with_all_labels_known() -> None:
    z, y, known = rows(40, seed=1)
    taught = refine.label_sums([z[:25], z[25:]], y * ~known)
    student = solve(sums([z], y * known, known), 1.0, PENALTY, taught)
    everything = solve(sums([z], y, torch.ones_like(known)), 1.0, PENALTY)
    torch.testing.assert_close(student.extended, everything.extended, rtol=1e-10, atol=1e-12)
    # and that is the ridge regression of the centred rows, written out
    centred, target = z.double() - z.double().mean(0), y.double() - y.double().mean(0)
    added = PENALTY * z.double().square().sum() / 4 * torch.eye(4, dtype=torch.float64)
    weight = torch.linalg.solve(centred.T @ centred + added, centred.T @ target).T
    torch.testing.assert_close(student.weight, weight, rtol=1e-8, atol=1e-10)


def test_the_sums_of_two_clients_give_the_student_of_their_pooled_rows() -> None:
    parts = [rows(30, seed=2), rows(20, seed=3)]
    labels = [torch.softmax(torch.randn(len(z), 3, generator=torch.Generator().manual_seed(4)), 1) for z, _, _ in parts]
    found = [sums([z], y * known, known) for z, y, known in parts]
    taught = [refine.label_sums([z], q * ~known) for (z, _, known), q in zip(parts, labels, strict=True)]
    z, y, known = (torch.cat(values) for values in zip(*parts, strict=True))
    pooled = sums([z], y * known, known)
    for omega in (1.0, 0.3):
        student = solve(total(found), omega, PENALTY, taught[0] + taught[1])
        one = solve(pooled, omega, PENALTY, refine.label_sums([z], torch.cat(labels) * ~known))
        torch.testing.assert_close(student.extended, one.extended, rtol=1e-10, atol=1e-12)
    # by hand: the second class of the first row of the first client
    expected = sum(float(q[i, 1]) * float(z[i, 2]) for (z, _, k), q in zip(parts, labels, strict=True)
                   for i in range(len(z)) if not k[i, 1])  # fmt: skip
    assert float((taught[0] + taught[1])[1, 2]) == pytest.approx(expected)


def test_a_teacher_labels_unknown_entries_only() -> None:
    plan = experiment.plan(config.load("synthetic", SETTINGS))
    model, data = plan.models[0], plan.federation.parties[0].train
    labels = teacher_labels(model, data)
    assert not bool(labels[data.known].any())
    unlabelled = ~data.known.all(1)
    torch.testing.assert_close(labels[unlabelled].sum(1), torch.ones(int(unlabelled.sum())).double())
    with torch.no_grad():
        logits = model(data.x).double()
    row = int(unlabelled.nonzero()[0])
    wanted = torch.softmax(logits[row][~data.known[row]], 0)
    torch.testing.assert_close(labels[row][~data.known[row]], wanted, rtol=1e-5, atol=1e-7)
    model.task = "multi"
    torch.testing.assert_close(teacher_labels(model, data), torch.sigmoid(logits) * ~data.known, rtol=1e-5, atol=1e-7)


def answers(plan: Plan, server: Server, number: int) -> list[Update]:
    found = []
    for m, party in enumerate(plan.federation.parties):
        models = ModelPair(plan.models[m])
        solving = phase_of(server) is Phase.SOLVING
        state = {"optimizer:kept": torch.ones(1), "own:label_encoder.weight": torch.ones(8, 16)} if solving else {}
        update, after = train_client(
            plan.algorithm, models, server, party.train, state, plan.config.training, (1, number, m),
            validation=party.validation,
        )  # fmt: skip
        if solving:
            assert after.keys() == state.keys()  # teachers stay as they are
        assert plan.algorithm.reject(update) is None
        found.append(replace(update, client=m))
    return found


def test_the_exchanges_send_sums_and_end_with_the_student_by_hand() -> None:
    plan = experiment.plan(config.load("synthetic", SETTINGS))
    algorithm = plan.algorithm
    assert isinstance(algorithm, Distillation)
    server = plan.start()
    assert {name for name in server.extra if "/" not in name} == {PHASE}
    seen: list[set[str]] = []
    for number in range(1, 5):
        replies = answers(plan, server, number)
        seen.append({*replies[0].weights, *replies[0].extra})
        for reply in replies:
            allowed = algorithm.reply_spec(server, number)
            assert reply.weights.keys() == allowed.weights.keys()
            assert all(allowed.extra[name].fits(value) for name, value in reply.extra.items())
        before, server = server, algorithm.server_step(plan.model, server, replies)
        if number == 3:
            taught, held = sum(reply.extra[TEACHER_SUMS] for reply in replies), [reply.extra for reply in replies]
    vectors = {"label_encoder.weight"}
    sent = {"grams", "which", "class_sums", "teacher_sums"}
    assert seen == [vectors, {"documents", "frequency"}, sent, {"losses", "rows"}]
    assert algorithm.finished(server)
    assert algorithm.planned_rounds(plan.model, 1) == 4
    student, thresholds, chosen = algorithm.distilled(server)
    assert thresholds is None
    said = [one for one in algorithm.warnings(server, plan.federation.label_names) if "labels alone" in one]
    assert len(said) == (chosen["omega"] == 0)
    assert not [name for name in server.state if name.endswith("grams")]
    # the weights: those of the candidate with the lowest loss, over its temperature
    candidates = algorithm._solving(before).extra["candidates"]
    losses = sum(reply.extra["losses"] for reply in replies)
    best, temperature = choose.best_candidate(losses)
    solved = solve(total(held), chosen["omega"], chosen["penalty"], taught).extended
    torch.testing.assert_close(candidates[best], solved)
    assert chosen["temperature"] == pytest.approx(temperature)
    torch.testing.assert_close(student.anchors(), (solved[:, :-1] / temperature).float())
    test = plan.federation.test
    assert test is not None
    with torch.no_grad():
        by_hand = with_constant(student.encode(test.x)) @ (solved / temperature).T
        torch.testing.assert_close(student(test.x).double(), by_hand, rtol=1e-4, atol=1e-4)


def test_sums_of_labels_above_one_are_refused() -> None:
    z, y, known = rows(30, seed=5)
    fine = {**sums([z], y * known, known), TEACHER_SUMS: refine.label_sums([z], y * ~known)}
    update = Update({}, 30, torch.ones(3).bool(), fine)
    assert rejection(update) is None
    for wrong in (3.0, -1.0):
        changed = {**fine, TEACHER_SUMS: wrong * refine.label_sums([z], torch.ones_like(y))}
        assert "not those of rows" in str(rejection(replace(update, extra=changed)))


def test_a_client_that_joins_while_the_student_is_solved_sends_the_sums_of_its_labels_too() -> None:
    plan = experiment.plan(config.load("synthetic", SETTINGS))
    server = plan.start()
    for number in range(1, 4):
        replies = answers(plan, server, number)
        server = plan.algorithm.server_step(plan.model, server, replies if number < 3 else replies[:2])
    late = answers(plan, server, 4)
    assert [TEACHER_SUMS in reply.extra for reply in late] == [False, False, True]
    server = plan.algorithm.server_step(plan.model, server, late)
    assert isinstance(plan.algorithm, Distillation)
    assert stage_of(plan.algorithm._solving(server)) is Stage.CANDIDATES
    assert not plan.algorithm.finished(server)
    server = plan.algorithm.server_step(plan.model, server, answers(plan, server, 5))
    assert plan.algorithm.finished(server)


def test_a_row_without_unknown_entries_gets_no_label() -> None:
    plan = experiment.plan(config.load("synthetic", SETTINGS))
    data = plan.federation.parties[0].train
    known = Examples(data.x, data.y, torch.ones_like(data.known), data.classes)
    assert not bool(teacher_labels(plan.models[0], known).any())


def test_unknown_entries_get_the_students_decisions_and_known_ones_stay() -> None:
    plan = experiment.plan(config.load("synthetic", SETTINGS))
    model, data = plan.models[0], plan.federation.parties[0].train
    taught = labelled_by(model, None, data)
    assert bool(taught.known.all())
    torch.testing.assert_close(taught.y[data.known], data.y[data.known])
    assert set(taught.y.sum(1).tolist()) == {1.0}
    with torch.no_grad():
        logits = model(data.x)
    row = int((~data.known.all(1)).nonzero()[0])
    assert int(taught.y[row].argmax()) == int(logits[row].masked_fill(data.known[row], -torch.inf).argmax())
    model.task = "multi"
    wanted = torch.where(data.known, data.y, (torch.sigmoid(logits) > 0.3).float())
    torch.testing.assert_close(labelled_by(model, torch.full((8,), 0.3), data).y, wanted)


def test_taught_clients_train_on_the_students_labels_and_send_nothing() -> None:
    plan = experiment.plan(config.load("synthetic", [*SETTINGS, "encoder.taught_rounds=2"]))
    algorithm, server = plan.algorithm, plan.start()
    assert isinstance(algorithm, Distillation)
    names = server.extra.keys()
    for number in range(1, 5):
        server = algorithm.server_step(plan.model, server, answers(plan, server, number))
        assert server.extra.keys() == names
    assert phase_of(server) is Phase.TEACHING
    assert algorithm.solved(server)
    assert not algorithm.finished(server)
    assert algorithm.participants(server) == [0, 1, 2]
    party = plan.federation.parties[0]
    update, state = train_client(
        algorithm, ModelPair(plan.models[0]), server, party.train, {}, plan.config.training, (1, 5, 0)
    )
    assert not update.weights
    assert not update.extra
    assert torch.equal(update.classes, party.train.classes)
    assert algorithm.reject(update) is None
    # the same training, by hand, on the rows that the student has labelled
    student, _, _ = algorithm.distilled(server)
    rows = labelled_by(student, None, party.train)
    models = ModelPair(plan.models[0])
    train_client(algorithm.then, models, replace(server, extra={}), rows, {}, plan.config.training, (1, 5, 0))
    assert torch.equal(state[f"{OWN}label_encoder.weight"], models.model.label_encoder.weight)
    # from now on all class vectors are the client's own
    assert TAUGHT in state
    loaded = load_own(plan.models[0].clone(), server.weights, state, party.train.classes)
    assert torch.equal(loaded.label_encoder.weight, state[f"{OWN}label_encoder.weight"])
    before, server = server, algorithm.server_step(plan.model, server, [update])
    assert torch.equal(before.weights["label_encoder.weight"], server.weights["label_encoder.weight"])
    assert before.weights is not server.weights  # so that a deployed engine asks for scores again
    assert algorithm.finished(algorithm.server_step(plan.model, server, [update]))
    assert algorithm.planned_rounds(plan.model, 1) == 6
