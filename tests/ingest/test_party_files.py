"""Your own files as a federation: what each party holds, what all agree on, what is kept for testing."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedalign import config, registry
from fedalign.errors import UserError
from fedalign.ingest.agree import agree, examples, offer
from fedalign.ingest.columns import read_all
from fedalign.ingest.offer import Agreement, Offer
from fedalign.ingest.party_files import Files, hold_out, read_aliases
from fedalign.inputs import Features, Moments, Scaling, Text, shared_vocabulary
from fedalign.learning import metrics
from fedalign.runs import experiment
from fedalign.types import Examples, Federation, Party, Sequences
from helpers.federations import play
from helpers.written import FORMATS, script, write

NOTES = {"note": ["red car", "blue car", "red bus", "old bus"] * 10, "kind": ["car", "car", "bus", None] * 10}


def load(path: Path | str = "", **options: Any) -> Federation:
    """As the configuration builds it."""
    dataset = registry.build("datasets", "files", {"path": str(path), **options})
    assert isinstance(dataset, Files)
    return dataset.load(Path())


def folder(tmp_path: Path, **tables: dict[str, list[Any]]) -> Path:
    place = tmp_path / "data"
    place.mkdir()
    for name, table in tables.items():
        write(place / f"{name}.csv", table)
    return place


def same_examples(a: Examples, b: Examples) -> bool:
    if isinstance(a.x, Sequences) and isinstance(b.x, Sequences):
        input_same = torch.equal(a.x.values, b.x.values) and torch.equal(a.x.offsets, b.x.offsets)
    else:
        input_same = isinstance(a.x, torch.Tensor) and isinstance(b.x, torch.Tensor) and torch.equal(a.x, b.x)
    return input_same and all(torch.equal(getattr(a, k), getattr(b, k)) for k in ("y", "known", "classes"))


def same(a: Party, b: Party) -> bool:
    pairs = [(a.train, b.train), (a.validation, b.validation), (a.test, b.test)]
    return all(x is not None and y is not None and same_examples(x, y) for x, y in pairs)


# --- the same rows in every form --------------------------------------------------------------------------------------


def inputs_in_every_format() -> list[tuple[dict[str, list[Any]], dict[str, Any]]]:
    rng = np.random.default_rng(0)
    names = ["walking", "running", "none of these", None]
    acts = [names[i] for i in rng.integers(4, size=40)]
    marks = [[None, 0, 1][i] for i in rng.integers(3, size=40)]
    other = [[None, 0, 1][i] for i in rng.integers(3, size=40)]
    numbers = [None if rng.random() < 0.1 else round(float(v), 3) for v in rng.normal(size=40)]
    series = [[[round(float(v), 2) for v in step] for step in rng.normal(size=(4, 2))] for _ in range(40)]
    texts = [f"word{i % 7} and 'word{i % 3}', \"quoted\"" for i in range(40)]
    codes = ["a;b" if i % 3 else "b" if i % 5 else None for i in range(40)]
    return [
        ({"note": texts, "codes": codes}, {"text": "note", "labels": "codes"}),
        ({"note": texts, "act": acts}, {"text": "note", "label": "act", "vocabulary": "counted", "min_clients": 1}),
        ({"p": numbers, "q": numbers[::-1], "act": acts}, {"features": ["p", "q"], "label": "act"}),
        ({"p": numbers, "l:a": marks, "l:b": other}, {"features": "all", "label_prefix": "l:"}),
        ({"s": series, "act": acts}, {"series": "s", "label": "act"}),
        ({"s": series, "act": acts}, {"series": "s", "label": "act", "layout": "nct"}),
    ]


@pytest.mark.parametrize(("table", "options"), inputs_in_every_format())
def test_every_format_gives_the_same_examples(
    tmp_path: Path, table: dict[str, list[Any]], options: dict[str, Any]
) -> None:
    first: Federation | None = None
    for ending in FORMATS:
        path = write(tmp_path / f"party.{ending}", table)
        found = load(parties={"party": str(path)}, **options)
        first = first or found
        assert found.label_names == first.label_names
        assert found.inputs == first.inputs
        assert same(found.parties[0], first.parties[0]), ending


def test_steps_in_rows_and_arrays_give_the_same_examples(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 5, size=30)
    flat = np.round(rng.normal(size=(lengths.sum(), 2)), 3)
    acts = ["sit" if i % 2 else "run" for i in range(30)]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    padded = np.full((30, 4, 2), np.nan)
    for i, (start, end) in enumerate(itertools.pairwise(offsets)):
        padded[i, : end - start] = flat[start:end]
    steps = {
        "w": np.repeat(np.arange(30), lengths).tolist(),
        "t": np.concatenate([np.arange(n) for n in lengths]).tolist(),
        "x": flat[:, 0].tolist(),
        "y": flat[:, 1].tolist(),
        "act": np.repeat(acts, lengths).tolist(),
    }
    write(tmp_path / "long.csv", steps)
    np.savez(tmp_path / "ragged.npz", s=flat, s_offsets=offsets, s_names=["x", "y"], act=acts)
    np.savez(tmp_path / "padded.npz", s=padded, s_names=["x", "y"], act=acts)
    lists = {"act": acts, "x": [], "y": []}
    for start, end in itertools.pairwise(offsets):
        lists["x"].append(flat[start:end, 0].tolist())
        lists["y"].append(flat[start:end, 1].tolist())
    write(tmp_path / "lists.parquet", lists)
    found = [
        load(parties={"p": str(tmp_path / name)}, series=["x", "y"], id="w", time="t", label="act")
        for name in ("long.csv", "ragged.npz", "padded.npz", "lists.parquet")
    ]
    assert all(same(one.parties[0], found[0].parties[0]) for one in found)
    assert all(one.inputs == found[0].inputs for one in found)


# --- what an Examples holds -------------------------------------------------------------------------------------------


def test_single_label_rows_of_an_own_class_are_fully_labelled_and_others_rule_out_own_classes(tmp_path: Path) -> None:
    a = {"x": [1.0, 2.0, 3.0, 4.0], "act": ["walk", "run", None, "none of these"]}
    b = {"x": [5.0, 6.0, 7.0], "act": ["sit", "sit", "walk"]}
    found = load(folder(tmp_path, a=a, b=b), features=["x"], label="act", test=0.0, validation=0.0)
    assert found.task == "single"
    assert found.label_names == ("run", "sit", "walk")
    train = found.parties[0].train
    assert train.y.tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert train.known.tolist() == [[True] * 3, [True] * 3, [False] * 3, [True, False, True]]
    assert train.classes.tolist() == [True, False, True]
    assert found.test is None


def test_multi_label_knows_own_classes_only(tmp_path: Path) -> None:
    a = {"note": ["p", "q", "r"], "codes": ["flu;cold", None, "cold"]}
    b = {"note": ["s", "t"], "codes": ["sepsis", "cold"]}
    found = load(folder(tmp_path, a=a, b=b), text="note", labels="codes", test=0.0, validation=0.0)
    assert found.label_names == ("cold", "flu", "sepsis")
    assert found.parties[0].train.y.tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 0]]
    assert found.parties[0].train.known.tolist() == [[True, True, False], [False] * 3, [True, True, False]]


def test_rows_without_input_are_left_out(tmp_path: Path) -> None:
    table = {"note": ["a", None, "b"], "kind": ["x", "x", "y"]}
    assert len(load(folder(tmp_path, a=table), text="note", label="kind", test=0, validation=0).parties[0].train) == 2


def test_a_declared_class_is_known_though_no_row_of_the_party_shows_it(tmp_path: Path) -> None:
    a = {"note": ["p", "q"], "codes": ["flu", "flu"]}
    b = {"note": ["s", "t"], "codes": ["cold", "flu"]}
    options = {"text": "note", "labels": "codes", "test": 0.0, "validation": 0.0}
    found = load(folder(tmp_path, a=a, b=b), classes={"a": ["Cold", "flu"]}, **options)
    assert found.parties[0].train.known.all()
    assert found.parties[0].train.y.tolist() == [[0, 1], [0, 1]]


def test_one_file_with_a_column_of_parties_equals_a_file_a_party(tmp_path: Path) -> None:
    other = {"note": ["old bike", "red bus"] * 10, "kind": ["bike", "bus"] * 10}
    apart = load(folder(tmp_path, a=NOTES, b=other), text="note", label="kind")
    mixed = {key: NOTES[key] + other[key] for key in NOTES} | {"site": ["a"] * 40 + ["b"] * 20}
    together = load(write(tmp_path / "all.csv", mixed), text="note", label="kind", client="site")
    assert [party.name for party in together.parties] == ["a", "b"]
    assert all(same(x, y) for x, y in zip(apart.parties, together.parties, strict=True))


def test_a_party_may_call_a_column_otherwise(tmp_path: Path) -> None:
    other = {"text": NOTES["note"], "kind": NOTES["kind"]}
    place = folder(tmp_path, a=NOTES, b=other)
    found = load(place, text="note", label="kind", columns={"b": {"note": "text"}})
    assert len(found.parties[1].train) == len(found.parties[0].train)


def test_one_bad_party_is_named(tmp_path: Path) -> None:
    place = folder(tmp_path, a=NOTES, b={"text": NOTES["note"], "kind": NOTES["kind"]})
    with pytest.raises(UserError, match=r"b.csv has no column 'note'"):
        load(place, text="note", label="kind")


# --- agreement --------------------------------------------------------------------------------------------------------


def test_a_column_of_very_few_values_tells_nothing(tmp_path: Path) -> None:
    """The mean of one value is the value itself."""
    table = {"x": [1.2345, None, None, None, None, None], "y": [1, 2, 3, 4, 5, None], "k": ["p", "q"] * 3}
    (held,) = Files(parties={"a": str(write(tmp_path / "a.csv", table))}, features=("x", "y"), label="k").read(
        Files(features=("x", "y"), label="k").reading()
    )
    moments = offer("a", held.records, held.classes, "single", {}).moments
    assert moments is not None
    assert moments.model_dump() == {"count": (0, 5), "mean": (0.0, 3.0), "squares": (0.0, 10.0)}
    found = Scaling.from_moments([moments, Moments.of(np.array([[7.0, 3.0]] * 9))])
    assert found.mean == (7.0, 3.0)  # as the others have it


def test_a_listed_label_column_that_no_file_has_is_a_slip(tmp_path: Path) -> None:
    table = {"x": [0.1, 0.2] * 9, "hot": [0, 1] * 9, "leak": [1, 0] * 9}
    place = folder(tmp_path, a=table, b={k: v for k, v in table.items() if k != "hot"})
    with pytest.raises(UserError, match=r"no file has the column 'leek' of dataset.label_columns; did you mean leak"):
        load(place, features="all", label_columns=["hot", "leek"])
    assert load(place, features="all", label_columns=["hot", "leak"]).label_names == ("hot", "leak")


def test_what_means_nothing_means_it_within_lists_too(tmp_path: Path) -> None:
    codes = [["NA"], ["asthma", "NA"], ["gout"], []] * 6
    script(tmp_path / "a.jsonl", "".join(json.dumps({"n": f"w{i}", "c": c}) + "\n" for i, c in enumerate(codes)))
    write(tmp_path / "b.csv", {"n": ["w"] * 24, "c": ["asthma;NA", "NA", "gout", "NA;NA"] * 6})
    parties = {name: str(next(tmp_path.glob(f"{name}.*"))) for name in "ab"}
    files = Files(parties=parties, text="n", labels="c", missing=("NA",))
    a, b = files.read(files.reading())
    assert a.classes == b.classes == ("asthma", "gout")
    assert a.records.labels is not None
    assert b.records.labels is not None
    assert a.records.labels.known.any(1).tolist() == [False, True, True, True] * 6  # an empty list: none of them
    assert b.records.labels.known.any(1).tolist() == [True, False, True, False] * 6


def test_two_test_files_are_one_too_many(tmp_path: Path) -> None:
    place = folder(tmp_path, a=NOTES, test=NOTES)
    script(place / "test.jsonl", "")
    with pytest.raises(UserError, match=r"test.csv and test.jsonl are both called test; remove or rename one"):
        load(place, text="note", label="kind")


def test_scaling_from_sums_equals_scaling_of_all_rows_together() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(loc=1e6 * k, size=(n, 3)) for k, n in enumerate([5, 40, 1])]
    parts[0][2, 1] = np.nan
    parts[1][:, 2] = 7.0
    parts[0][:, 2] = parts[2][:, 2] = 7.0
    together = Scaling.fit(np.concatenate(parts))
    found = Scaling.from_moments([Moments.of(part) for part in parts])
    np.testing.assert_allclose(found.mean, together.mean, rtol=1e-12)
    np.testing.assert_allclose(found.sd, together.sd, rtol=1e-9)
    assert found.sd[2] == 1.0  # a constant column


def test_a_constant_column_is_left_at_zero_whatever_its_size() -> None:
    """Its mean is rounded, so that the deviation from it is not quite 0, and the more so the larger it is."""
    sizes = np.array([0.1, 12_345.6789, 1e8 + 0.1, 1e15 + 0.1])
    parts = [np.tile(sizes, (n, 1)) for n in (1000, 377, 3)]
    fitted = Scaling.fit(np.concatenate(parts))
    agreed = Scaling.from_moments([Moments.of(part) for part in parts])
    for scaling in (fitted, agreed):
        assert scaling.sd == (1.0, 1.0, 1.0, 1.0)
    assert Scaling.fit(np.array([[1e8], [1e8 + 4]])).sd == (2.0,)  # little beside its mean, and no rounding
    assert Scaling.fit(np.array([[1e-9], [3e-9]])).sd == pytest.approx((1e-9,))


def test_a_counted_vocabulary_keeps_rare_words_and_words_of_one_party_at_home(tmp_path: Path) -> None:
    a = {"note": ["flu flu smith", "flu cough"], "k": ["x", "y"]}
    path = write(tmp_path / "a.csv", a)
    reading = Files(text="note", label="k").reading()
    how = {"vocabulary": "counted", "min_count": 2, "min_clients": 2}
    reported = offer("a", read_all_of(path, reading), ["x", "y"], "single", how)
    assert reported.words == {"flu": 3}  # smith and cough do not leave the party
    assert shared_vocabulary([{"flu": 3, "rash": 5}, {"flu": 2}, {"rash": 1}], 2) == ("rash", "flu")
    with pytest.raises(UserError, match=r"no word is used 2 times by each of 2 parties; lower dataset.min_count"):
        agree([reported], how)


def read_all_of(path: Path, reading: Any) -> Any:
    from fedalign.ingest.formats import open_table

    return read_all(open_table(path), reading)


def test_hashed_words_need_nothing_from_a_party(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", NOTES)
    reading = Files(text="note", label="kind").reading()
    reported = offer("a", read_all_of(path, reading), ["car"], "single", {})
    assert json.loads(reported.model_dump_json(exclude_none=True)) == {
        "party": "a",
        "task": "single",
        "kind": "text",
        "classes": ["car"],
        "columns": [],
        "other": {},
    }


def test_a_party_alone_reads_its_file_as_the_simulation_does(tmp_path: Path) -> None:
    """The path of a deployment: each reads its own file, only offers and the agreement travel, as JSON."""
    rng = np.random.default_rng(0)
    a = {"p": rng.normal(size=30).tolist(), "q": rng.normal(size=30).tolist(), "k": ["x", "y", None] * 10}
    b = {"q": rng.normal(size=30).tolist(), "p": rng.normal(size=30).tolist(), "k": ["y", "z", "x"] * 10}
    place = folder(tmp_path, a=a, b=b)
    whole = load(place, features="all", label="k")
    offers = []
    for name in "ab":
        alone = Files(parties={name: str(place / f"{name}.csv")}, features="all", label="k")
        (held,) = alone.read(alone.reading())
        divided = alone.divided(held)
        reported = offer(name, divided.train, divided.classes, "single", alone.preparation)
        offers.append(Offer.model_validate_json(reported.model_dump_json()))
    agreed, _ = agree(offers, {})
    agreed = Agreement.model_validate_json(agreed.model_dump_json())
    assert agreed.inputs == whole.inputs
    alone = Files(parties={"b": str(place / "b.csv")}, features="all", label="k")
    (held,) = alone.read(alone.reading())
    divided = alone.divided(held)
    mine = examples(divided.train, divided.classes, agreed)
    assert same_examples(mine, whole.parties[1].train)  # also with its columns in another order


def test_names_are_joined_after_normalising_or_by_an_alias_and_never_else(tmp_path: Path) -> None:
    a = {"x": [1.0, 2.0], "k": ["Walking", "cycle"]}
    b = {"x": [1.0, 2.0, 3.0], "k": ["walking ", "bicycle", "walks"]}
    place = folder(tmp_path, a=a, b=b)
    options: dict[str, Any] = {"features": ["x"], "label": "k", "test": 0.0, "validation": 0.0}
    assert load(place, **options).label_names == ("bicycle", "cycle", "Walking", "walks")
    aliases = script(tmp_path / "aliases.toml", '"bicycle" = "cycle"\n')
    assert load(place, aliases=str(aliases), **options).label_names == ("cycle", "Walking", "walks")
    table = script(tmp_path / "aliases.csv", "name,class\nbicycle,cycle\nwalks,walking\n")
    assert load(place, aliases=str(table), **options).label_names == ("cycle", "Walking")


def test_parties_that_do_not_fit_are_named() -> None:
    one = Offer(party="a", task="single", kind="features", classes=("x",), columns=("p", "q"), moments=moments(2))
    two = Offer(party="b", task="single", kind="features", classes=("y",), columns=("p", "r"), moments=moments(2))
    with pytest.raises(UserError, match="b has r, which a lacks and lacks numbers in q, which a has; list the columns"):
        agree([one, two], {})
    series = Offer(party="c", task="single", kind="series", classes=("x",), moments=moments(3))
    with pytest.raises(UserError, match="a holds features and c series"):
        agree([one, series], {})
    with pytest.raises(UserError, match="c2 has 2 channels and c 3"):
        agree([series, series.model_copy(update={"party": "c2", "moments": moments(2)})], {})
    with pytest.raises(UserError, match="a holds single and d multi"):
        agree([one, one.model_copy(update={"party": "d", "task": "multi"})], {})
    agreed = Agreement(task="single", label_names=("x",), inputs=Features(scaling=Scaling.identity(["p"])))
    with pytest.raises(UserError, match="'y' is not among the agreed label names"):
        agreed.places(["y"])
    grown = agreed.model_copy(update={"label_names": ("x", "y")})  # a party joined with a new class
    assert grown.places(["y", "x"]) == [1, 0]


def moments(width: int) -> Moments:
    return Moments(count=(1,) * width, mean=(0.0,) * width, squares=(1.0,) * width)


# --- test and validation ----------------------------------------------------------------------------------------------


def test_each_class_is_held_out_in_the_same_share_and_the_split_has_a_key(tmp_path: Path) -> None:
    table = {"x": list(range(100)), "k": ["a"] * 50 + ["b"] * 30 + ["c"] + [None] * 19}
    path = write(tmp_path / "p.csv", table)
    labels = read_all_of(path, Files(features=("x",), label="k").reading()).labels.for_classes(["a", "b", "c"])
    held, kept = hold_out(labels, 0.2, "p", "test")
    assert labels.yes[held].sum(0).tolist() == [10, 6, 0]  # the only row of c stays
    assert len(held) == 16  # rows that nobody labelled stay too
    assert sorted([*held, *kept]) == list(range(100))
    again, _ = hold_out(labels, 0.2, "p", "test")
    other, _ = hold_out(labels, 0.2, "q", "test")
    assert held.tolist() == again.tolist() != other.tolist()


def test_without_a_test_file_the_parties_test_rows_are_pooled(tmp_path: Path) -> None:
    other = {"note": ["old bike", "red bus"] * 10, "kind": ["bike", "bus"] * 10}
    found = load(folder(tmp_path, a=NOTES, b=other), text="note", label="kind", test=0.5)
    assert found.test is not None
    assert len(found.test) == sum(len(party.test) for party in found.parties if party.test is not None)
    assert found.test.known.any(1).all()


def test_a_test_file_belongs_to_no_party_and_leaves_them_all_their_rows(tmp_path: Path) -> None:
    place = folder(tmp_path, a=NOTES, test={"note": ["red car", "a bus"], "kind": ["car", "bus"]})
    found = load(place, text="note", label="kind", test_file=str(place / "test.csv"), validation=0.0)
    assert [party.name for party in found.parties] == ["a"]
    assert len(found.parties[0].train) == 40
    assert found.parties[0].test is None
    assert found.test is not None
    assert found.test.y.tolist() == [[0, 1], [1, 0]]


def test_a_test_row_of_a_class_that_nobody_annotates_is_named(tmp_path: Path) -> None:
    place = folder(tmp_path, a=NOTES, test={"note": ["x", "y"], "kind": ["car", "ship"]})
    message = r"test.csv, row 3, column kind: 'ship' is not one of the classes that the parties annotate \(bus, car\)"
    with pytest.raises(UserError, match=message):
        load(place, text="note", label="kind", test_file=str(place / "test.csv"))


def test_a_test_row_whose_class_is_unknown_does_not_count() -> None:
    """Three rows: a known one predicted right, one of no known class, one that is known not to be class 0."""
    y = torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 0, 0]])
    known = torch.tensor([[True, True, True], [False, False, False], [True, False, False]])
    predicted = metrics.decide(torch.tensor([[5.0, 0, 0], [0, 5, 0], [0, 0, 5]]), "single")
    scores = metrics.scores(metrics.count(predicted, y, known), "single")
    assert scores.accuracy == 1.0
    assert scores.f1 == 1.0  # classes 1 and 2 were neither seen nor wrongly predicted on a known entry
    wrong = metrics.decide(torch.tensor([[5.0, 0, 0], [0, 5, 0], [5, 0, 0]]), "single")
    scores = metrics.scores(metrics.count(wrong, y, known), "single")
    assert scores.accuracy == 1.0  # only rows with a known class have a right answer
    assert scores.f1 == pytest.approx(2 / 3)  # but calling a ruled-out row class 0 costs precision


# --- in a configuration -----------------------------------------------------------------------------------------------

TOML = """
name = "mine"
seed = 1
rounds = 2
clients_per_round = 2
[dataset]
name = "files"
path = "data"
text = "note"
label = "kind"
aliases = "aliases.toml"
buckets = 64
[dataset.classes]
a = ["car", "bus"]
[encoder]
name = "transformer"
dim = 8
heads = 2
feedforward = 8
"""


def test_paths_are_relative_to_the_toml_and_the_stored_settings_load_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path, a=NOTES)
    script(tmp_path / "aliases.toml", "")
    settings = script(tmp_path / "mine.toml", TOML)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    loaded = config.load(str(settings))
    assert loaded.dataset.options["path"] == str(tmp_path / "data")
    assert [round.number for round in play(experiment.plan(loaded))] == [1, 2]
    stored = script(elsewhere / "config.toml", config.to_toml(loaded))
    assert config.load(str(stored)) == loaded
    changed = config.load(str(settings), ["dataset.path=other", "dataset.test_file=t.csv"])
    assert changed.dataset.options["path"] == str(elsewhere / "other")  # on the command line: relative to here


def test_a_run_on_files_resumes_from_its_folder(tmp_path: Path) -> None:
    folder(tmp_path, a=NOTES)
    script(tmp_path / "aliases.toml", "")
    settings = config.load(str(script(tmp_path / "mine.toml", TOML)))
    experiment.run(settings, tmp_path / "run")
    again = config.load(str(tmp_path / "run" / "config.toml"), rounds=3)
    begun: list[int] = []
    callbacks = experiment.RunCallbacks(on_start=lambda plan, done: begun.append(done))
    assert experiment.run(again, tmp_path / "run", resume=True, callbacks=callbacks)["rounds"] == 3
    assert begun == [2]


# --- mistakes ---------------------------------------------------------------------------------------------------------


def mistakes(place: Path) -> list[tuple[dict[str, Any], str]]:
    base = {"text": "note", "label": "kind"}
    here = {"path": str(place), **base}
    only = str(place / "a.csv")
    write(place.parent / "sheet.csv", NOTES)
    odd = place.parent / "odd"
    odd.mkdir()
    script(odd / "a.csv", "note,kind\nx,car\n")
    script(odd / "b.xlsx", "x")
    twice = place.parent / "twice"
    twice.mkdir()
    script(twice / "a.csv", "note,kind\nx,car\n")
    script(twice / "a.jsonl", '{"note": "x", "kind": "car"}\n')
    bare = place.parent / "bare"
    bare.mkdir()
    unlabelled = script(place.parent / "unlabelled.csv", "note,kind\nx,\ny,\n")
    blank = script(place.parent / "blank.csv", "note,kind\n,car\n,bus\n")
    marks = script(place.parent / "marks.csv", "x,l:a,l:b\n1,1,0\n2,0,0\n")
    columns = {"features": ["x"], "label_prefix": "l:"}
    return [
        (base, "the files are missing; set dataset.path"),
        ({**here, "parties": {"a": only}}, "the files are given twice"),
        ({**base, "path": str(place / "none")}, "there is no file or folder"),
        ({**base, "path": only}, "is one file; name the column that holds the party in dataset.client"),
        ({**here, "client": "site"}, "is a folder with one file per party"),
        ({**base, "parties": {"a": only}, "client": "site"}, "with dataset.parties leave it out"),
        ({**base, "parties": {"a": only + "x"}}, "there is no file"),
        ({**base, "path": str(odd)}, "b.xlsx is not supported; save it as CSV"),
        ({**base, "path": str(twice)}, "a.csv and a.jsonl would be one party"),
        ({**base, "path": str(bare)}, "holds no CSV, TSV, JSONL, Parquet or NPZ file"),
        ({**base, "parties": {"u": str(unlabelled)}}, "unlabelled.csv: u annotates nothing"),
        ({**base, "parties": {"u": str(blank)}}, "blank.csv: every row of u is empty"),
        ({**base, "parties": {"u\n": only}}, "the party name 'u\\n' is too long or not printable"),
        ({**columns, "parties": {"m": str(marks)}}, "marks.csv: the class 'b' has 0 positive rows"),
        ({**columns, "parties": {"m": str(marks)}, "classes": {"m": ["a", "c"]}}, "no label column for the declared"),
        ({**here, "classes": {"b": ["car"]}}, "dataset.classes names the party 'b'"),
        ({**here, "classes": {"a": ["car", "CAR"]}}, "dataset.classes.a names one class twice"),
        (
            {**here, "classes": {"a": ["car"]}},
            "a.csv, row 4, column kind: 'bus' is not one of the classes declared",
        ),
        ({**here, "columns": {"z": {"note": "t"}}}, "dataset.columns names the party 'z'"),
        ({**here, "aliases": str(place / "no.toml")}, "cannot read the aliases"),
        ({**here, "test_file": str(place / "no.csv")}, "there is no file"),
        ({**here, "vocabulary": "counted"}, "lower dataset.min_count or dataset.min_clients"),
        ({**here, "test": 1.5}, "dataset.test: input should be less than 1"),
        ({**here, "feature": []}, "dataset files has no option 'feature'; did you mean features?"),
    ]


def test_every_mistake_is_one_sentence_that_names_the_fix(tmp_path: Path) -> None:
    place = folder(tmp_path, a=NOTES)
    for options, message in mistakes(place):
        with pytest.raises(UserError) as caught:
            load(**{"path": "", **options})
        assert message in str(caught.value), options


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", '"a" = 3', "'a' stands for no class"),
        ("a.toml", "a = ", "cannot read the aliases"),
        ("a.toml", '"a" = "b"\n"b" = "c"', "'b' is the class of 'a' and itself an alias"),
        ("a.toml", '"a" = "\\u200b"', "not a printable character"),
        ("a.csv", "x,y\n1,2\n", "the first line must be name,class"),
        ("a.csv", "name,class\na\n", "'a' stands for no class"),
    ],
)
def test_bad_aliases_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        read_aliases(script(tmp_path / name, text))
    assert message in str(caught.value)
    assert name in str(caught.value)


def test_a_class_without_a_positive_may_be_kept_on_purpose(tmp_path: Path) -> None:
    path = script(tmp_path / "m.csv", "x,l:a,l:b\n1,1,0\n2,0,0\n")
    found = load(parties={"m": str(path)}, features=["x"], label_prefix="l:", min_positives=0, test=0.0)
    assert found.label_names == ("a", "b")


def test_options_that_only_matter_elsewhere_change_nothing(tmp_path: Path) -> None:
    place = folder(tmp_path, a=NOTES)
    plain = load(place, text="note", label="kind")
    assert isinstance(plain.inputs, Text)
    assert same(plain.parties[0], load(place, text="note", label="kind", separator="|", layout="nct").parties[0])
    assert plain.inputs.buckets == 4096
