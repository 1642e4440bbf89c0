"""A person's own nn.Module as the data encoder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedalign import config, registry
from fedalign.errors import UserError
from fedalign.inference.model import Model
from fedalign.inputs import Shape
from fedalign.runs import experiment
from helpers.federations import Stopped, outcome, play, same, script, tiny
from helpers.trained_models import run_of

TEXT = """
import torch
from torch import nn

class Bag(nn.Module):
    def __init__(self, shape, dim=12, dropout=0.5, activation=nn.ReLU):
        super().__init__()
        self.bag = nn.EmbeddingBag(shape.size[0], dim)
        self.tail = nn.Sequential(activation(), nn.Dropout(dropout), nn.Linear(dim, dim))

    def forward(self, x):
        return self.tail(self.bag(x.values.long(), x.offsets[:-1]))

class Padding(Bag):
    # like most modules for sequences it cannot read nothing
    def forward(self, x):
        rows = [self.bag.weight[row.long()] for row in x.values.split(x.lengths.tolist())]
        return self.tail(nn.utils.rnn.pad_sequence(rows, batch_first=True).mean(1))

class Frozen(Bag):
    def __init__(self, shape, all_of_it=False):
        super().__init__(shape)
        (self if all_of_it else self.bag).requires_grad_(False)

class Plain(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.layer = nn.Linear(size, width)

    def forward(self, x):
        return self.layer(x)

class Sometimes(Bag):
    # draws for longer batches only, which no trial can know
    def __init__(self, shape):
        super().__init__(shape, dropout=0.0)

    def forward(self, x):
        found = super().forward(x)
        return found + torch.rand_like(found) if self.training and len(found) > 5 else found

class Flat(Plain):
    def forward(self, x):
        return self.layer(x).flatten()

class Other(Plain):
    dim = 3

class Broken(Plain):
    def forward(self, x):
        raise RuntimeError("no luck")

class Nothing(nn.Module):
    def forward(self, x):
        return x

class Running(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.BatchNorm1d(size)

    def forward(self, x):
        return self.norm(x)

class NoModule:
    pass

number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path / "their_package"
    folder.mkdir()
    script(folder, "__init__.py", "")
    script(folder, "nets.py", TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    yield "their_package.nets"
    for name in [name for name in sys.modules if name.startswith("their_package")]:
        del sys.modules[name]


def with_encoder(name: str, **options: Any) -> config.Config:
    return tiny("fedalign", encoder={"name": name, **options}, rounds=3)


def test_it_trains_and_the_same_seed_gives_the_same_weights(mine: str) -> None:
    prepared = experiment.plan(with_encoder(f"{mine}:Bag", dim=10))
    assert prepared.model.anchors().shape[1] == 10
    first = play(prepared)
    torch.manual_seed(99)  # what the caller did before does not matter
    again = play(experiment.plan(with_encoder(f"{mine}:Bag", dim=10)))
    assert same(first[-1].server.weights, again[-1].server.weights)
    assert not same(first[0].server.weights, first[-1].server.weights)


@pytest.mark.parametrize("algorithm", ["fedalign", "fedavg", "scaffold", "fedprox"])
def test_what_it_does_not_want_trained_stays(mine: str, algorithm: str) -> None:
    for all_of_it in (False, True):
        options = {"name": f"{mine}:Frozen", "all_of_it": all_of_it}
        prepared = experiment.plan(tiny(algorithm, encoder=options, rounds=2, clients_per_round=4))
        before = prepared.model.arrays()
        after = play(prepared)[-1].server.weights
        moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
        tail = {"data_encoder.tail.2.weight", "data_encoder.tail.2.bias"}
        assert moved == {name for name in before if "label_encoder" in name} | (set() if all_of_it else tail)


def test_it_is_not_asked_to_read_a_batch_without_rows(mine: str) -> None:
    """Of two rows a batch often none has a class of the client."""
    config = tiny("fedavg", encoder={"name": f"{mine}:Padding"}, training__batch_size=2, rounds=1)
    assert play(experiment.plan(config))[-1].scores is not None


def test_a_round_depends_on_its_own_key_alone_so_a_run_can_be_resumed(mine: str) -> None:
    from fedalign.engines.local import Local
    from fedalign.learning.rounds import rounds

    prepared = experiment.plan(with_encoder(f"{mine}:Bag"))
    whole = play(prepared)
    with Local(workers=1).open(prepared) as engine:
        first = next(iter(rounds(prepared, engine, prepared.start())))
        torch.rand(7)
        rest = list(rounds(prepared, engine, first.server, done=1))
    assert same(whole[-1].server.weights, rest[-1].server.weights)


def test_the_callers_random_numbers_go_on_as_if_nothing_had_happened(mine: str) -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    play(experiment.plan(with_encoder(f"{mine}:Bag")))
    assert torch.equal(torch.rand(4), expected)


def test_its_options_are_written_down_and_classes_among_its_defaults_are_not(mine: str) -> None:
    text = config.to_toml(with_encoder(f"{mine}:Bag"))
    assert "dropout = 0.5" in text
    assert "activation" not in text


def test_a_file_may_hold_the_module(tmp_path: Path) -> None:
    path = script(tmp_path, "net.py", TEXT + "\nencoder = Bag\n")
    assert play(experiment.plan(with_encoder(str(path))))[-1].scores is not None


def test_a_model_finds_its_module_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "net.py", TEXT + "\nencoder = Bag\n")
    monkeypatch.chdir(tmp_path)
    experiment.run(with_encoder("./net.py"), tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"is a program of its own, '.*net.py'; look at it, then load the model with"):
        Model.load(tmp_path / "run")
    model = Model.load(tmp_path / "run", trust_code=True)
    copy = Model.load(model.save(tmp_path / "copy"), trust_code=True)
    (tmp_path / "net.py").unlink()
    again = Model.load(copy.save(tmp_path / "again"), trust_code=True)  # the program went along, twice
    assert again.label_names == model.label_names
    assert str(tmp_path) not in (tmp_path / "again" / "labels.json").read_text()


def test_a_model_from_elsewhere_runs_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that names a file of its own, a file of the machine or a module: nothing is imported unasked."""
    Model.load(run_of("machines")).save(tmp_path / "model")
    monkeypatch.chdir(tmp_path / "model")
    script(tmp_path / "model", "net.py", f"open({str(tmp_path / 'ran')!r}, 'w')\n" + TEXT + "\nencoder = Bag\n")
    card = json.loads((tmp_path / "model" / "labels.json").read_text())
    for name in ("net.py", str(tmp_path / "model" / "net.py"), "net:Bag"):
        card["encoder"] = {"name": name}
        (tmp_path / "model" / "labels.json").write_text(json.dumps(card))
        with pytest.raises(UserError, match="is a program of its own"):
            Model.load(tmp_path / "model")
    # whatever a dictionary could be made of, and what is no text
    for encoder in (
        [["name", "net.py"]],
        ["name", "net.py"],
        "net.py",
        {"name": 3},
        {"name": None},
        {"name": ["net.py"]},
        {},
    ):
        card["encoder"] = encoder
        (tmp_path / "model" / "labels.json").write_text(json.dumps(card))
        with pytest.raises(UserError, match="is damaged"):
            Model.load(tmp_path / "model")
    with pytest.raises(UserError, match="is a program of its own"):
        registry.build("encoders", "net.py", {}, trust_code=False)
    assert not (tmp_path / "ran").exists()


def test_a_module_of_no_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "lonely_nets.py", TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.find("encoders", "lonely_nets:Bag") is not None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Plain", {"size": 4}, "encoder.width is missing"),
        ("Plain", {"size": 4, "width": 5, "depth": 2}, "has no option 'depth'"),
        ("Plain", {"size": 5, "width": 5}, "Plain cannot read a tensor of shape (3, 4)"),
        ("Plain", {"size": "x", "width": 5}, "Plain cannot be built: TypeError"),
        ("Flat", {"size": 4, "width": 5}, "Flat returns shape (15,) for 3 rows; it must return a tensor (rows, dim)"),
        ("Other", {"size": 4, "width": 5}, "rows of 5 numbers but its dim is 3"),
        ("Broken", {"size": 4, "width": 5}, "RuntimeError: no luck"),
        ("Nothing", {}, "has no weights to train"),
        ("Running", {"size": 4}, "keeps running statistics (norm.running_mean)"),
        ("NoModule", {}, "is no torch.nn.Module"),
        ("number", {}, "is not a class"),
        ("Missing", {}, "cannot import encoder"),
    ],
)
def test_what_does_not_fit_is_said(mine: str, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        registry.build("encoders", f"{mine}:{name}", options).build(Shape("features", (4,)), torch.Generator())
    assert message in str(caught.value)


# --- a dataclass with `build`, as CONTRIBUTING.md shows -----------------------------------------------------------

OPTIONS = (
    TEXT
    + """
from dataclasses import dataclass
from fedalign.errors import UserError

@dataclass(frozen=True)
class Mine:
    dim: int = 12
    which: str = "bag"

    def build(self, shape, generator):
        if self.which == "running":
            return Running(shape.size[0])
        if self.which == "wrong":
            return Flat(shape.size[0], self.dim)
        if self.which == "crash":
            raise ValueError("no luck")
        if self.which == "refuse":
            raise UserError("mine reads no such rows; choose another encoder")
        module = Bag(shape, self.dim)
        module.options = self
        return module

encoder = Mine
"""
)


@pytest.fixture
def options_file(tmp_path: Path) -> Iterator[str]:
    yield str(script(tmp_path, "options_of_mine.py", OPTIONS))
    sys.modules.pop("fedalign_user_options_of_mine", None)


def test_an_encoder_with_build_is_seeded(options_file: str) -> None:
    settings = with_encoder(options_file)
    first = experiment.plan(settings)
    torch.rand(3)  # what the caller draws does not matter
    assert same(first.model.arrays(), experiment.plan(settings).model.arrays())
    other = experiment.plan(settings.model_copy(update={"seed": 4}))
    assert not same(first.model.arrays(), other.model.arrays())
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    experiment.plan(settings)
    assert torch.equal(torch.rand(4), expected)


def test_a_run_with_such_an_encoder_resumes_and_its_model_loads(options_file: str, tmp_path: Path) -> None:
    def stop(now: experiment.Round, seconds: float) -> None:
        if now.number == 1:
            raise Stopped

    settings = with_encoder(options_file, dim=10)
    experiment.run(settings, tmp_path / "whole")
    with pytest.raises(Stopped):
        experiment.run(settings, tmp_path / "run", callbacks=experiment.RunCallbacks(on_round=stop))
    experiment.run(settings, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    assert "dim = 10" in (tmp_path / "run" / "config.toml").read_text()
    model = Model.load(tmp_path / "run", trust_code=True)
    assert model.network.data_encoder.options.dim == 10  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("running", "keeps running statistics (norm.running_mean)"),
        ("wrong", "returns shape (36,) for 3 rows"),
        ("crash", "Mine cannot be built: ValueError: no luck"),
        ("refuse", "mine reads no such rows; choose another encoder"),
    ],
)
def test_such_an_encoder_is_checked(options_file: str, which: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        registry.build("encoders", options_file, {"which": which}).build(Shape("features", (4,)), torch.Generator())
    assert message in str(caught.value)


def test_an_encoder_of_the_package_is_built_as_it_is() -> None:
    from fedalign.encoders.transformer import Transformer

    assert registry.find("encoders", "transformer") is Transformer
    assert registry.find("encoders", "fedalign.encoders.transformer:Transformer") is Transformer


def test_clients_of_a_module_that_draws_nothing_are_trained_at_the_same_time(mine: str) -> None:
    from fedalign.engines.local import Local
    from fedalign.learning.rounds import rounds

    found = {}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    for dropout, workers in ((0.0, 1), (0.0, 2), (0.5, 2)):
        prepared = experiment.plan(with_encoder(f"{mine}:Bag", dropout=dropout))
        with Local(workers=workers).open(prepared) as engine:
            assert engine.workers == (workers if dropout == 0 else 1)
            *_, last = rounds(prepared, engine, prepared.start())
        found[dropout, workers] = last.server.weights
        assert torch.equal(torch.get_rng_state(), state)
    assert same(found[0.0, 1], found[0.0, 2])
    assert not same(found[0.0, 1], found[0.5, 2])


def test_a_module_that_draws_sometimes_is_noticed_and_works_with_one_worker(mine: str) -> None:
    from fedalign.engines.local import Local
    from fedalign.learning.rounds import rounds

    prepared = experiment.plan(with_encoder(f"{mine}:Sometimes"))
    with (
        Local(workers=2).open(prepared) as engine,
        pytest.raises(UserError, match=r"Sometimes.* set engine.workers = 1"),
    ):
        list(rounds(prepared, engine, prepared.start()))
    assert same(play(prepared)[-1].server.weights, play(prepared)[-1].server.weights)
