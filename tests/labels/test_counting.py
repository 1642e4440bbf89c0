"""Counts of whole corpora: against the plain way, over processes and shards, as files, and the ties that follow."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import plain_counts
from fedalign.errors import UserError
from fedalign.labels import counts
from fedalign.labels.corpus import cooccurrence, sources
from fedalign.labels.corpus.segments import Segment
from fedalign.labels.counts import Corpus, Counts, Rule, Way


def numbers(found: Counts) -> tuple[int, list[int], list[tuple[int, int, int]]]:
    return found.segments, found.counts, found.pairs


WORDS = ["lie", "down", "walk", "walking", "run", "phone", "pocket", "table", "the", "on", "Mr", "é", "home"]
NAMES = ["LIE_DOWN", "FIX_walking", "PHONE_ON_TABLE", "PHONE_IN_POCKET", "LOC_home", "run"]


def novel(seed: int, sentences: int) -> str:
    """Sentences of a few words, some lines wrapped, some paragraphs apart."""
    rng = random.Random(seed)
    said = []
    for _ in range(sentences):
        words = rng.choices(WORDS, k=rng.randint(1, 14))
        said.append(" ".join(words).capitalize() + rng.choice([".", "!", "?", '."', "..."]))
        said.append(rng.choice([" ", " ", " ", "\n", "\n\n"]))
    return "".join(said)


@given(
    st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(1, 40)), min_size=1, max_size=6),
    st.sampled_from(["line", "sentence", "paragraph", "document"]),
    st.booleans(),
    st.sampled_from(["2n+2", "n", "n+1", "12"]),
    st.integers(50, 2000),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.slow
def test_a_corpus_of_files_counts_as_the_plain_way_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: list[tuple[int, int]],
    segment: Segment,
    stem: bool,
    window: str,
    piece: int,
) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    texts = [novel(*one) for one in made]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text, encoding="utf-8")
    rule = cooccurrence.rule(NAMES, segment, window=window, stem=stem)
    expected = plain_counts.count(rule, [text.encode() for text in texts])
    with monkeypatch.context() as patch:
        patch.setattr(sources, "PIECE", piece)
        if any(expected[1]):
            assert numbers(cooccurrence.count(rule, [tmp_path], workers=1).counts) == expected


@pytest.fixture(scope="session")
def one_novel(real_data: Path) -> Path:
    path = real_data / "corpora" / "novels" / "Anon_Clara_1864.txt"
    if not path.is_file():
        pytest.skip("no corpus of novels on this machine")
    return path


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("by_stem", [False, True], ids=["names", "shipped words by stem"])
def test_a_novel_counts_as_the_plain_way_does_on_one_process_and_on_many(
    one_novel: Path, monkeypatch: pytest.MonkeyPatch, by_stem: bool
) -> None:
    """A million bytes, 51 names of ExtraSensory, in pieces of 100 kB so that three processes share one file."""
    rule = counts.read("extrasensory").rule
    if not by_stem:
        rule = cooccurrence.rule(rule.names, "sentence")
    expected = plain_counts.count(rule, [one_novel.read_bytes()])
    assert expected[0] > 5000
    assert sum(map(bool, expected[1])) > 20
    alone = cooccurrence.count(rule, [one_novel], workers=1).counts
    monkeypatch.setattr(sources, "PIECE", 100_000)
    monkeypatch.setattr(cooccurrence, "SMALL", 0)
    many = cooccurrence.count(rule, [one_novel], workers=3).counts
    assert numbers(alone) == expected
    assert many == alone


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"shard{i}.txt" for i in range(4)]
    for i, path in enumerate(paths):
        path.write_text(novel(i, 60), encoding="utf-8")
    return paths


def test_shards_add_up_exactly_in_any_order(shards: list[Path], tmp_path: Path) -> None:
    rule = cooccurrence.rule(NAMES, "sentence")
    whole = cooccurrence.count(rule, shards, workers=1).counts
    parts = [cooccurrence.count(rule, [path], workers=1, about=path.name).counts for path in shards]
    for i, part in enumerate(parts):  # by way of files, as between machines
        counts.write(part, tmp_path / f"{i}.json")
    read = [counts.read(tmp_path / f"{i}.json") for i in range(4)]
    sums = [counts.merge(list(order)) for order in permutations(read)]
    assert all(one == sums[0] for one in sums)
    assert counts.merge([counts.merge(read[:2]), counts.merge(read[2:])]) == sums[0]
    assert numbers(sums[0]) == numbers(whole)
    assert [one.about for one in sums[0].corpora] == [path.name for path in shards]
    assert sum(one.bytes for one in sums[0].corpora) == whole.corpora[0].bytes
    assert sum(one.segments for one in sums[0].corpora) == whole.segments


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"segment": "line"}, "segment"),
        ({"stem": True}, "stem"),
        ({"names": ["walk", "run"]}, "names"),
        ({"window": "n"}, "ways"),
    ],
)
def test_counts_by_other_rules_do_not_add_up(shards: list[Path], change: dict[str, object], differs: str) -> None:
    usual: dict[str, object] = {"names": ["walk", "run home"], "segment": "sentence"}
    parts = [
        cooccurrence.count(cooccurrence.rule(**{**usual, **more}), shards[:1], workers=1).counts  # type: ignore[arg-type]
        for more in ({}, change)
    ]
    with pytest.raises(UserError, match=f"cannot be added: their {differs} differ"):
        counts.merge(parts)


def test_a_file_of_counts_is_read_back_as_it_was(shards: list[Path], tmp_path: Path) -> None:
    rule = cooccurrence.rule(['say "ah"', "wälk\\run", "home"], "sentence", {"home": ["home", "walk the"]})
    found = cooccurrence.count(rule, shards, workers=1, about="ä", command="fedalign labels count").counts
    counts.write(found, tmp_path / "c.json")
    read = counts.read(tmp_path / "c.json")
    assert numbers(read) == numbers(found)
    assert (read.rule, read.corpora, read.says_little) == (found.rule, found.corpora, found.little())
    counts.write(read, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "c.json").read_bytes()


def written(tmp_path: Path, change: Callable[[dict[str, object]], object]) -> Path:
    rule = Rule(segment="line", names=["a", "b"], ways=[[Way(words=["a"], window=4)], [Way(words=["b"], window=4)]])
    made = Corpus(about="x", command="y", files=1, skipped=0, bytes=9, segments=9)
    table = json.loads(
        Counts(rule=rule, corpora=[made], segments=9, counts=[3, 4], pairs=[(0, 1, 2)]).model_dump_json()
    )
    change(table)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(table))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.update(format="other"), "format"),
        (lambda table: table.update(counts=[3]), "counts must hold a number of segments for each of the 2 names"),
        (lambda table: table.update(counts=[3, 10]), "counts must hold a number of segments"),
        (lambda table: table.update(counts=[3, -1]), "counts must hold a number of segments"),
        (lambda table: table.update(counts=[3, 4.5]), "counts"),
        (lambda table: table.update(pairs=[[0, 1, 4]]), r"pairs holds \[0, 1, 4\], which contradicts the counts"),
        (lambda table: table.update(pairs=[[1, 0, 1]]), "which contradicts the counts"),
        (lambda table: table.update(pairs=[[0, 2, 1]]), "which contradicts the counts"),
        (lambda table: table.update(pairs=[[0, 1, 1], [0, 1, 1]]), "pairs holds a pair twice"),
        (lambda table: table.update(secret=1), "secret"),
        (lambda table: table["rule"].update(ways=[[]]), "every name needs at least one way to be expressed"),
        (lambda table: table.pop("segments"), "segments"),
    ],
)
def test_a_file_of_counts_that_cannot_be_is_refused(
    tmp_path: Path, change: Callable[[dict[str, object]], object], message: str
) -> None:
    with pytest.raises(UserError, match=f"holds no label counts: .*{message}"):
        counts.read(written(tmp_path, change))
    assert counts.read(written(tmp_path, lambda table: None)).counts == [3, 4]


def test_no_file_of_counts_is_said(tmp_path: Path) -> None:
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    for source, message in (
        (
            tmp_path / "none.json",
            "there is no file .*none.json with label counts; make it with `fedalign labels count`",
        ),
        ("extrasensry", "unknown label counts 'extrasensry'; did you mean extrasensory?"),
        (tmp_path / "bytes.json", "cannot read label counts"),
    ):
        with pytest.raises(UserError, match=message):
            counts.read(source)


def table(alone: list[int], pairs: list[tuple[int, int, int]], segments: int) -> Counts:
    names = [f"n{i}" for i in range(len(alone))]
    rule = Rule(segment="line", names=names, ways=[[Way(words=[name], window=4)] for name in names])
    made = Corpus(about="", command="", files=1, skipped=0, bytes=1, segments=segments)
    return Counts(rule=rule, corpora=[made], segments=segments, counts=alone, pairs=pairs)


@pytest.mark.parametrize("version", ["2", "1.1", "0"])
def test_counts_of_an_unknown_version_are_refused_with_a_sentence_of_their_own(tmp_path: Path, version: str) -> None:
    path = tmp_path / "c.json"
    counts.write(table([10, 20], [], 100), path)
    assert counts.read(path).counts == [10, 20]
    path.write_text(path.read_text().replace('label counts 1"', f'label counts {version}"'))
    with pytest.raises(
        UserError, match=rf"c\.json has the format 'fedalign label counts {version}', which this version"
    ):
        counts.read(path)
    path.write_text(path.read_text().replace("fedalign label counts", "cooking recipes"))
    with pytest.raises(UserError, match=r"c\.json holds no label counts"):
        counts.read(path)


def test_pmi_is_the_log_of_how_much_more_often_than_by_chance() -> None:
    """In 100 segments n0 stands in 10, n1 in 20, both in 4: by chance it were 10 * 20 / 100 = 2, so log 4/2. n0 and n2
    (in 50) share 5, as by chance: 0. n1 and n2 never meet: unknown as the paper writes it."""
    found = table([10, 20, 50], [(0, 1, 4), (0, 2, 5)], 100).pmi()
    assert found[0, 1] == found[1, 0] == pytest.approx(math.log(2))
    assert found[0, 2] == pytest.approx(0)
    assert np.isnan(found[1, 2])
    assert found[0, 0] == pytest.approx(math.log(10))


def test_smoothing_draws_towards_chance_and_knows_avoidance() -> None:
    """With a half added to both: log (4 + .5) / (2 + .5); n1 and n2 would have met 10 times: log .5 / 10.5. n3, in 4
    segments, says too little: unknown, and so is n4, which never occurs."""
    found = table([10, 20, 50, 4, 0], [(0, 1, 4), (0, 2, 5), (0, 3, 4)], 100).pmi(0.5)
    assert found[0, 1] == pytest.approx(math.log(4.5 / 2.5))
    assert found[1, 2] == pytest.approx(math.log(0.5 / 10.5))
    assert np.isnan(found[3]).all()
    assert np.isnan(found[4]).all()
    assert table([10, 20, 50, 4, 0], [], 100).little() == ["n3", "n4"]


@pytest.mark.parametrize(
    ("names", "descriptions", "options", "message"),
    [
        (["walk"], {}, {}, "1 name given; counting what occurs together needs at least two"),
        (["walk", "run", "WALK"], {}, {}, "'walk' and 'WALK' are the same name after normalising; drop one of them"),
        (["lie down", "lie-down"], {}, {}, "'lie down' and 'lie-down' are the same name after normalising"),
        (["(other)", "walk"], {}, {}, r"the name '\(other\)' has no word to search for; give it a description"),
        (["a", "walk"], {"a": ["(x)"]}, {}, "the name 'a' has no word to search for"),
        (["---", "walk"], {}, {}, "holds no letter or digit"),
        (["at home", "home"], {}, {}, "'at home' and 'home' are searched for by the same words"),
        (["walks", "walked"], {}, {"stem": True}, "'walks' and 'walked' are searched for by the same words"),
        (["ming", "walk"], {}, {"stem": True}, None),
        (["walk", "run"], {}, {"window": "0"}, "--window 0 is 0 words long for a name of 1"),
        (["walk home", "run"], {}, {"window": "1"}, "--window 1 is 1 words long for a name of 2 words"),
        (["walk", "run"], {}, {"window": "wide"}, "--window 'wide' must look like 2n"),
        (["walk", "run"], {}, {"window": ""}, "--window '' must look like 2n"),
        ([f"n{i}" for i in range(100_001)], {}, {}, "100,001 names given; 100,000 is the limit"),
    ],
)
def test_names_that_cannot_be_counted_are_refused(
    names: list[str], descriptions: dict[str, list[str]], options: dict[str, object], message: str | None
) -> None:
    if message is None:
        cooccurrence.rule(names, "line", descriptions, **options)  # type: ignore[arg-type]
        return
    with pytest.raises(UserError, match=message):
        cooccurrence.rule(names, "line", descriptions, **options)  # type: ignore[arg-type]


def test_a_word_whose_stem_is_everywhere_is_refused() -> None:
    with pytest.raises(UserError, match="the stem of 'ins' is 'in', which occurs everywhere; use another word"):
        cooccurrence.rule(["ins", "walk"], "line", stem=True)


def test_windows_grow_with_a_name() -> None:
    for window, expected in (
        ("2n+2", [4, 6, 8]),
        ("n", [1, 2, 3]),
        ("n+4", [5, 6, 7]),
        ("3n", [3, 6, 9]),
        ("9", [9] * 3),
    ):
        ways = cooccurrence.rule(["walk", "run home", "phone table pocket"], "line", window=window).ways
        assert [way[0].window for way in ways] == expected


@pytest.mark.slow
def test_the_progress_ends_at_all_bytes(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(path.stat().st_size for path in shards)
    monkeypatch.setattr(sources, "PIECE", 1000)
    for workers in (1, 2):
        monkeypatch.setattr(cooccurrence, "SMALL", 0)
        seen: list[tuple[int, int]] = []
        rule = cooccurrence.rule(NAMES, "sentence")
        cooccurrence.count(rule, shards, workers=workers, on_progress=lambda *now: seen.append(now))  # noqa: B023
        assert seen[-1] == (size, size)
        assert [read for read, _ in seen] == sorted(read for read, _ in seen)
        assert len(seen) > 8


def test_a_worker_that_dies_is_said(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from fedalign.labels.corpus import workers

    monkeypatch.setattr(cooccurrence, "SMALL", 0)
    monkeypatch.setattr(sources, "PIECE", 100)  # so many that this process cannot count all before the others begin
    monkeypatch.setattr(workers.sys, "executable", "/bin/true")
    with pytest.raises(UserError, match="a counting process died, perhaps for lack of memory; try --workers 1"):
        cooccurrence.count(cooccurrence.rule(NAMES, "sentence"), shards, workers=4)
