"""`fedalign labels` as a person types it: from names and a corpus to a picture of vectors, and every mistake."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedalign import config
from fedalign.cli import _count_report
from fedalign.labels import counts, vectors
from fedalign.labels.corpus import cooccurrence
from fedalign.labels.settings import Labels
from fedalign.runs import display
from helpers.commands import background, fedalign
from helpers.federations import script

EXAMPLES = Path(__file__).parents[2] / "examples"
CORPUS = """\
He sat in the kitchen, cooking and eating. She was walking home.
They were eating and drinking at home.

Walking home, he was talking to himself. Nobody was cooking.
Talking and eating, they sat at home. He was walking.
She was cooking at home, eating and talking.
"""
NAMES = "COOKING\nEATING\nFIX_walking\nLOC_home\nTALKING\nSURFING_THE_INTERNET\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(display.output, "width", 200)
    monkeypatch.setattr(display.screen, "width", 200)
    script(tmp_path, "names.txt", NAMES)
    (tmp_path / "books").mkdir()
    for i in range(3):
        script(tmp_path / "books", f"{i}.txt", CORPUS)
    return tmp_path


def one_line(text: str) -> str:
    return " ".join(text.split())


def count(*more: str | Path) -> int:
    return fedalign("labels", "count", "--names", "names.txt", "--corpus", "books", "--out", "c.json", *more)


@pytest.mark.slow
def test_from_a_corpus_to_vectors_to_a_picture(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert count() == 0
    shown = capsys.readouterr()
    assert "3 files" in shown.out
    assert "24 sentences, 0 skipped" in one_line(shown.out)
    assert "SURFING_THE_INTERNET never occurs; add words to its line" in one_line(shown.err)
    found = counts.read("c.json")
    # of each file's eight sentences four hold eating, two of them with talking
    assert dict(zip(found.rule.names, found.counts, strict=True)) == {
        "COOKING": 9,
        "EATING": 12,
        "FIX_walking": 9,
        "LOC_home": 15,
        "TALKING": 9,
        "SURFING_THE_INTERNET": 0,
    }
    assert (1, 4, 6) in found.pairs
    assert json.loads((place / "c.json").read_text())["says_little"] == ["SURFING_THE_INTERNET"]
    made = found.corpora[0]
    assert made.command == "fedalign labels count --names names.txt --corpus books --segment sentence"
    assert (made.about, made.files, made.bytes) == ("books", 3, 3 * len(CORPUS))

    assert shown.out.splitlines()[-1].split("next:")[1].strip() == (
        "fedalign labels vectors --counts c.json --out c.safetensors"
    )
    assert fedalign("labels", "vectors", "--counts", "c.json", "--out", "c.safetensors") == 0
    shown = capsys.readouterr()
    assert "no edge was found for SURFING_THE_INTERNET; they get random vectors" in one_line(shown.err)
    assert "6 vectors of 256 numbers in c.safetensors" in shown.out

    assert fedalign("labels", "show", "c.safetensors", "--nearest", "2") == 0
    shown = capsys.readouterr()
    assert "without an edge, so their vectors are random: SURFING_THE_INTERNET" in one_line(shown.err)
    assert "these names occur too rarely in the corpus: SURFING_THE_INTERNET" in one_line(shown.err)
    assert "heatmap: c.png" in shown.out
    with Image.open(place / "c.png") as picture:
        assert picture.size[0] > 300
    first = (place / "c.png").read_bytes()
    assert fedalign("labels", "show", "c.safetensors", "--png", "again.png") == 0
    assert (place / "again.png").read_bytes() == first
    assert "--set labels.source=vectors --set labels.file=c.safetensors" in capsys.readouterr().out
    _, rows = vectors.stored(place / "c.safetensors")
    how = Labels(source="vectors", file="c.safetensors")
    assert vectors.make(["walking", "home"], 256, how, 1).tolist() == rows[2:4].tolist()  # names as runs have them


@pytest.mark.slow
def test_a_seed_gives_the_same_bytes_in_every_process_and_another_seed_others(place: Path) -> None:
    assert count() == 0
    for out, seed in (("here", "1"), ("other", "2")):
        assert fedalign("labels", "vectors", "--counts", "c.json", "--out", f"{out}.safetensors", "--seed", seed) == 0
    command = ["labels", "vectors", "--counts", "c.json", "--out", "there.safetensors", "--seed", "1"]
    subprocess.run([sys.executable, "-m", "fedalign", *command], check=True, capture_output=True)
    here, other, there = ((place / f"{out}.safetensors").read_bytes() for out in ("here", "other", "there"))
    assert here == there
    assert here != other


def test_counts_of_shards_merge_to_those_of_the_whole(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["--names", "names.txt"]
    for i in range(3):
        assert fedalign("labels", "count", *names, "--corpus", f"books/{i}.txt", "--out", f"{i}.json") == 0
    assert count() == 0
    assert fedalign("labels", "merge", "2.json", "0.json", "1.json", "--out", "sum.json") == 0
    whole, total = counts.read("c.json"), counts.read("sum.json")
    assert (total.segments, total.counts, total.pairs) == (whole.segments, whole.counts, whole.pairs)
    assert sum(one.bytes for one in total.corpora) == whole.corpora[0].bytes
    assert "3 files: 0.0 MB of text, 24 sentences" in capsys.readouterr().out


def test_descriptions_and_stems_widen_what_is_found(place: Path) -> None:
    script(place, "names.txt", "COOKING\tcooked | kitchen\nEATING\teat\n")
    assert count("--stem") == 0
    assert counts.read("c.json").counts == [9, 12]
    assert counts.read("c.json").corpora[0].command.endswith("--segment sentence --stem")
    assert count() == 0
    assert counts.read("c.json").counts == [3, 0]  # neither "eat" nor "cooked" is there as such


def test_the_settings_are_kept_with_the_counts(place: Path) -> None:
    assert count("--segment", "paragraph", "--window", "n+9", "--about", "three books", "--encoding", "latin-1") == 0
    found = counts.read("c.json")
    assert found.corpora[0].about == "three books"
    assert found.corpora[0].command == (
        "fedalign labels count --names names.txt --corpus books --segment paragraph --window n+9 --encoding latin-1"
    )
    assert {way.window for ways in found.rule.ways for way in ways} == {10, 11}


@pytest.mark.slow
def test_standard_input_is_a_corpus(place: Path) -> None:
    command = ["labels", "count", "--names", "names.txt", "--corpus", "-", "--out", "c.json"]
    subprocess.run(
        [sys.executable, "-m", "fedalign", *command], input=(CORPUS * 3).encode(), check=True, capture_output=True
    )
    assert counts.read("c.json").counts == [9, 12, 9, 15, 9, 0]


def test_what_could_not_be_read_is_named_and_counted(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(12):
        (place / "books" / f"bad{i:02}.txt").write_bytes(b"caf\xe9")
    (place / "books" / "cover.jpg").write_bytes(b"\xff\xd8")
    (place / "books" / "a\x1b[31m.txt").write_bytes(b"caf\xe9")
    assert count() == 0
    shown = capsys.readouterr()
    assert "skipped books/bad00.txt: it is not utf-8 (byte 0xe9); another --encoding may fit" in one_line(shown.err)
    assert "and 3 more were skipped" in shown.err
    assert "ignored, because they are no text of the corpus: 1 .jpg" in shown.err
    assert "13 skipped" in one_line(shown.out)
    assert "\x1b[31m" not in shown.err + shown.out
    assert "a\\x1b[31m.txt" in shown.err
    assert counts.read("c.json").corpora[0].skipped == 13
    assert count("--strict") == 2
    assert "leave out --strict to skip such files" in one_line(capsys.readouterr().err)


def test_a_name_that_never_occurs_gets_words_that_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """money-fx never occurs; of its words money does, in two lines, and of the shipped description currency, in one.
    The README would hold the name; it is no text of the corpus unless it is named."""
    folder = tmp_path / "news"
    folder.mkdir()
    (folder / "a.txt").write_text("money and trade\nmoney\ncurrency and crude\n")
    (folder / "README.md").write_text("money fx\n")
    (tmp_path / "names.txt").write_text("trade\nmoney-fx\ncrude\tpetroleum\n")
    out = ["--out", tmp_path / "c.json", "--segment", "line"]
    assert fedalign("labels", "count", "--names", tmp_path / "names.txt", "--corpus", folder, *out) == 0
    shown = capsys.readouterr()
    err = one_line(shown.err)
    assert "ignored, because they are no text of the corpus: 1 README.md" in err
    assert "money-fx never occurs; add words to its line in --names, for example money (2 segments), currency" in err
    assert "crude never occurs; add words to its line in --names, for example crude (1 segments)" in err
    assert "kB/s)" in shown.out or "MB/s)" in shown.out
    named = ["--corpus", folder, "--corpus", tmp_path / "README.md"]
    (tmp_path / "README.md").write_text("money fx\n")
    assert fedalign("labels", "count", "--names", tmp_path / "names.txt", *named, "--plain", *out) == 0
    found = counts.read(tmp_path / "c.json")
    assert found.counts == [1, 1, 1]  # crude is searched for as itself
    assert found.corpora[0].command.endswith("--plain")


def test_a_small_corpus_has_a_rate() -> None:
    assert _count_report._rate(20_000, 0.5) == "40.0 kB/s"
    assert _count_report._rate(30_000_000, 2.0) == "15 MB/s"


def mistakes(place: Path) -> list[tuple[list[str | Path], str]]:
    script(place, "one.txt", "walk\n")
    script(place, "blank.txt", "\n\n")
    script(place, "twice.txt", "lie down\nLIE-DOWN\n")
    script(place, "bare.txt", "walk\n(other)\n")
    script(place, "signs.txt", "walk\n---\n")
    script(place, "control.txt", "walk\nru\u200bn\n")
    script(place, "strange.txt", "zebra\nquagga\n")
    (place / "latin.txt").write_bytes(b"caf\xe9\nwalk\n")
    script(place, "wrong.json", "{}")
    script(place, "bad.safetensors", "nonsense")
    (place / "empty").mkdir()
    (place / "pictures").mkdir()
    (place / "pictures" / "a.jpg").write_bytes(b"\xff")
    by_line = cooccurrence.count(cooccurrence.rule(["cooking", "eating"], "line"), [place / "books"])
    counts.write(by_line.counts, place / "lines.json")

    def counting(names: str = "names.txt", corpus: str = "books", *more: str) -> list[str | Path]:
        return ["labels", "count", "--names", names, "--corpus", corpus, "--out", "new.json", *more]

    making = ["labels", "vectors", "--out", "new.safetensors"]
    return [
        (counting("one.txt"), "1 name given; counting what occurs together needs at least two"),
        (counting("blank.txt"), "blank.txt holds no name; write one name per line"),
        (counting("twice.txt"), "'lie down' and 'LIE-DOWN' are the same name after normalising; drop one of them"),
        (counting("bare.txt"), "the name '(other)' has no word to search for; give it a description"),
        (counting("signs.txt"), "holds no letter or digit; give the class a name"),
        (counting("control.txt"), "holds U+200B, which is not a printable character; remove it"),
        (counting("none.txt"), "cannot read names from none.txt"),
        (counting("latin.txt"), "cannot read names from latin.txt"),
        (counting("strange.txt"), "none of the 2 names occurs in 24 segments; is this the right corpus"),
        (counting(corpus="nowhere"), "there is no file or folder nowhere to count"),
        (counting(corpus="empty"), "the corpus holds no file"),
        (counting(corpus="pictures"), "none of the 1 files of the corpus could be read; give .txt, .jsonl"),
        (counting(corpus="latin.txt"), "could be read: latin.txt is not utf-8"),
        (counting("names.txt", "books", "--window", "x"), "--window 'x' must look like 2n+2"),
        (counting("names.txt", "books", "--encoding", "utf-7x"), "unknown encoding 'utf-7x'"),
        (counting("names.txt", "books", "--corpus", "books/0.txt"), "0.txt is in the corpus twice"),
        (["labels", "merge", "lines.json", "lines.json", "--out", "new.json"], "is given twice; give each once"),
        (["labels", "merge", "lines.json", "sentences.json", "--out", "new.json"], "cannot be added: their segment"),
        (["labels", "merge", "lines.json", "wrong.json", "--out", "new.json"], "wrong.json holds no label counts"),
        (["labels", "merge", "lines.json", "--out", "far/new.json"], "there is no folder far for new.json"),
        (["labels", "merge", "lines.json", "--out", "empty"], "empty is a folder; give a file's name"),
        (making, "give either --counts COUNTS or --sentence"),
        ([*making, "--counts", "r8", "--sentence"], "give either --counts COUNTS or --sentence"),
        ([*making, "--sentence"], "--sentence needs --names"),
        ([*making, "--counts", "r9"], "unknown label counts 'r9'; choose from dsads, extra"),
        ([*making, "--counts", "none.json"], "there is no file none.json with label counts"),
        ([*making, "--counts", "wrong.json"], "wrong.json holds no label counts"),
        ([*making, "--counts", "r8", "--names", "names.txt"], "r8 has no counts for COOKING, EATING"),
        ([*making, "--sentence", "--names", "names.txt", "--model", "empty"], "empty is not a sentence model"),
        ([*making, "--sentence", "--names", "names.txt", "--phrase", "no"], "phrase"),
        (["labels", "show", "none.safetensors"], "cannot read label vectors from none.safetensors"),
        (["labels", "show", "bad.safetensors"], "cannot read label vectors from bad.safetensors"),
        (["run", "r8-8", "--set", "labels.file=extrasensory", "--out", "new"], "has no counts for acq, crude"),
    ]


def test_every_mistake_is_one_sentence_and_exit_code_2(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("labels", "count", "--names", "names.txt", "--corpus", "books", "--out", "sentences.json") == 0
    made = mistakes(place)
    capsys.readouterr()
    before = sorted(path.name for path in place.iterdir())
    for arguments, message in made:
        if arguments[0] == "run" and not (Path.home() / ".cache" / "fedalign" / "data" / "r8").is_dir():
            continue
        assert fedalign(*arguments) == 2, arguments
        said = capsys.readouterr().err
        assert message in one_line(said), (arguments, said)
        assert "Traceback" not in said
        assert said.count("error:") == 1
        assert sorted(path.name for path in place.iterdir()) == before, arguments


def test_vectors_of_another_program_are_shown(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("v.npz", names=np.array(["sitting", "lying"]), vectors=np.array([[3.0, 4.0], [4.0, 3.0]]))
    assert fedalign("labels", "show", "v.npz") == 0
    assert "lying 0.96" in one_line(capsys.readouterr().out)  # (3 * 4 + 4 * 3) / 25


def test_the_shipped_counts_are_listed_with_what_they_say_too_little_about(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedalign("labels") == 0
    shown = one_line(capsys.readouterr().out)
    for name in counts.shipped():
        assert name in shown
    assert "50 English novels" in shown
    assert "rope-jumping" in shown


def children(pid: int) -> list[str]:
    found: list[str] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread may end while it is looked at
            found += path.read_text().split()
    return found


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_behind(place: Path) -> None:
    """Text keeps coming in on standard input, so counting cannot end before the signal arrives."""
    (place / "long.txt").write_text(CORPUS * 40_000)  # large enough for processes of their own
    corpus = ["--corpus", "long.txt", "--corpus", "-"]
    command = ["labels", "count", "--names", "names.txt", *corpus, "--out", "c.json", "--workers", "2"]
    running = background(*command, cwd=place, start_new_session=True, stdin=subprocess.PIPE)

    def write() -> None:
        with suppress(BrokenPipeError), running.stdin:  # type: ignore[union-attr]
            while True:
                running.stdin.write(CORPUS * 1000)  # type: ignore[union-attr]

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    deadline = time.monotonic() + 60
    while len(processes := children(running.pid)) < 2 and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)  # until both counting processes have started
    running.send_signal(signal.SIGINT)
    try:
        running.wait(timeout=60)
    finally:
        running.kill()  # which closes the pipe, whatever happened
        writer.join(timeout=60)
    assert running.stdout is not None
    assert running.stderr is not None
    out, err = running.stdout.read(), running.stderr.read()
    running.stdout.close()
    running.stderr.close()
    assert len(processes) == 2
    assert running.returncode == 130, (out, err)
    assert err.splitlines()[-1] == "stopped; nothing was written"
    assert "Traceback" not in err
    assert not (place / "c.json").exists()
    assert not any(Path(f"/proc/{process}").exists() for process in processes)


def test_help_of_labels_answers_without_torch() -> None:
    program = (
        "import sys; sys.argv = ['fedalign', 'labels', 'count', '--help']\n"
        "from fedalign.cli import main\n"
        "try: main.main()\n"
        "except SystemExit: pass\n"
        "heavy = [m for m in ('torch', 'numpy', 'polars', 'sklearn', 'scipy', 'matplotlib') if m in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--segment" in done.stdout


def test_a_picture_of_names_in_any_script_and_with_any_sign(tmp_path: Path) -> None:
    import numpy as np

    from fedalign.report import heatmap

    names = ["$x_1$", "心不全", "a" * 200, "болезнь", "<b>&"]
    similar = np.corrcoef(np.random.default_rng(0).normal(size=(5, 20)))
    heatmap.draw(names, similar, tmp_path / "p.png", "$title")
    with Image.open(io.BytesIO((tmp_path / "p.png").read_bytes())) as picture:
        assert picture.format == "PNG"
    blocks = np.kron(np.eye(2), np.ones((3, 3)))[:, [0, 3, 1, 4, 2, 5]][[0, 3, 1, 4, 2, 5]]
    assert {i % 2 for i in heatmap.order(blocks)[:3]} in ({0}, {1})  # what is alike stands side by side


def test_init_check_and_run_say_which_source_class_vectors_start_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(display.output, "width", 400)
    monkeypatch.setattr(display.screen, "width", 400)
    folder = tmp_path / "machines"
    shutil.copytree(EXAMPLES / "machines", folder)
    (folder / "fedalign.toml").unlink()
    unused = "label names are not used: no shipped counts know most of them and no sentence model is installed"
    assert fedalign("init", folder) == 0
    assert f"labels.source = auto  (for run --deep; analytic uses no label names; {unused}" in capsys.readouterr().out
    assert config.load(str(folder)).labels.source == "auto"
    assert fedalign("check", folder) == 0
    shown = capsys.readouterr()
    assert "ready to train" in shown.out
    assert "label names" not in shown.err  # analytic learning has no class vectors that start from names
    toml = (folder / "fedalign.toml").read_text()
    assert 'name = "analytic"' in toml
    (folder / "fedalign.toml").write_text(toml.replace('name = "analytic"', 'name = "fedalign"'))
    assert fedalign("check", folder) == 0
    shown = capsys.readouterr().err
    assert f"note: {unused}" in shown
    assert "pip install 'fedalign[text]'" in shown
    assert fedalign("check", folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["data"]["label_source"] == "random"
    assert fedalign("run", folder, "--rounds", "1", "--set", "training.epochs=1", "--out", tmp_path / "run") == 0
    assert f"note: {unused}" in capsys.readouterr().err
    assert config.load(str(tmp_path / "run" / "config.toml")).labels.source == "random"
    assert "random vectors; label names are not used" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_run_says_that_an_older_toml_does_not_use_label_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(display.screen, "width", 400)
    run = ["run", EXAMPLES / "machines", "--rounds", "1", "--set", "training.epochs=1", "--no-report"]
    assert fedalign(*run, "--out", tmp_path / "run") == 0
    shown = capsys.readouterr().err
    assert 'note: label names are not used: labels.source is "random"' in shown
    assert 'set labels.source to "auto" to use the names' in shown


def test_init_says_which_shipped_counts_know_the_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(display.output, "width", 400)
    for party, names in {"north": ("earn", "acq"), "south": ("crude", "grain")}.items():
        script(
            tmp_path, f"{party}.csv", "text,label\n" + "".join(f"words of row {i},{names[i % 2]}\n" for i in range(8))
        )
    assert fedalign("init", tmp_path) == 0
    assert "the shipped counts 'r8', which know 3 of 4 label names; random vectors for grain" in capsys.readouterr().out
