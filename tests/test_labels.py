from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import normalize

from fedalign.config import Labels
from fedalign.errors import UserError
from fedalign.labels import graph, vectors

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
    counts = vectors.pair_counts(np.array([[0, 1, 2]]), 3, window=2)
    assert counts.tolist() == [[0, 1, 0.5], [1, 0, 1], [0.5, 1, 0]]


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
    counts = vectors.pair_counts(graph.walks(clusters(), 60, 60, np.random.default_rng(0)), 6, 5)
    coarse = normalize(vectors.skip_gram(counts, 32, 1), dim=1)
    monkeypatch.setattr(vectors, "LARGEST_STEP", 0.5)
    fine = normalize(vectors.skip_gram(counts, 32, 1), dim=1)
    assert float((coarse @ coarse.T - fine @ fine.T).abs().max()) < 0.01


def test_an_isolated_label_gets_an_ordinary_norm_in_the_papers_reading() -> None:
    weights = np.zeros((4, 4))
    weights[:3, :3] = 1 - np.eye(3)
    how = Labels(walks=50, walk_length=40)
    paper = vectors.from_graph(weights, 32, how, seed=1).norm(dim=1)
    released = vectors.from_graph(weights, 32, how.model_copy(update={"reading": "released"}), seed=1).norm(dim=1)
    assert float(paper[3]) == pytest.approx(float(paper[:3].mean()), rel=1e-4)
    assert torch.isfinite(released).all()


def test_the_same_seed_gives_the_same_bytes_in_another_process(table: Path) -> None:
    program = (
        "import hashlib, sys\n"
        "from fedalign.labels import vectors\n"
        "from fedalign.config import Labels\n"
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


@pytest.mark.data
def test_the_published_tables_have_the_faults_we_know_of(real_data: Path) -> None:
    """Self-loops and isolated labels, as counted in the tables published with the paper's code."""
    import csv

    expected = {"extrasensory": (51, 60, 13), "mimic3": (50, 247, 6), "pamap2": (12, 17, 2)}
    for name, (size, pairs, lonely) in expected.items():
        path = real_data / "label_graphs" / f"{name}.csv"
        with path.open() as stream:
            names = next(csv.reader(stream))[1:]
        weights = graph.edges(graph.read_table(path, names), "released")
        assert len(names) == size
        assert int((np.triu(weights, 1) > 0).sum()) == pairs
        assert int(graph.isolated(weights).sum()) == lonely
