"""Fetching archives from a server that stops, goes on, changes its mind or sends something else."""

from __future__ import annotations

import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedalign.data.downloads import Archive, download, fetch_archive, sha256
from fedalign.errors import UserError

WANTED = r"(?:^|/)(data/s\d+\.txt)$"


class Server:
    """Serves one file on the loopback; knows ranges, and can stop in the middle."""

    def __init__(self) -> None:
        self.content = b""
        self.tag = '"one"'
        self.ranges = True
        self.stop_after: int | None = None
        self.status = 200
        self.asked: list[str | None] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                span = self.headers.get("Range")
                server.asked.append(span)
                first = 0
                if span and server.ranges and self.headers.get("If-Range") == server.tag:
                    first = int(span.removeprefix("bytes=").removesuffix("-"))
                if server.status != 200 or first >= len(server.content) > 0:
                    self.send_error(server.status if server.status != 200 else 416)
                    return
                self.send_response(206 if first else 200)
                self.send_header("ETag", server.tag)
                self.send_header("Content-Length", str(len(server.content) - first))
                self.end_headers()
                body = server.content[first:]
                self.wfile.write(body if server.stop_after is None else body[: server.stop_after])
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/archive.zip"


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    thread = threading.Thread(target=found.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield found
    found.http.shutdown()
    found.http.server_close()
    thread.join()


def zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


GOOD = zipped(
    {"top/data/s1.txt": b"one", "top/data/s2.txt": b"two", "top/readme.pdf": b"%", "../../../data/s9.txt": b"x"}
)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_an_archive_is_fetched_and_laid_out(server: Server, tmp_path: Path) -> None:
    server.content = GOOD
    seen: list[tuple[int, int | None]] = []
    count, digest = fetch_archive(Archive(server.url, WANTED), tmp_path / "set", progress=lambda *p: seen.append(p))
    assert count == 3
    # neither the rest nor the download, and nothing outside, wherever a member wants to lie
    assert names(tmp_path) == ["set/data/s1.txt", "set/data/s2.txt", "set/data/s9.txt"]
    assert (tmp_path / "set" / "data" / "s2.txt").read_bytes() == b"two"
    assert seen[0] == (0, len(GOOD))
    assert seen[-1] == (len(GOOD), len(GOOD))
    local = tmp_path / "copy.zip"
    local.write_bytes(GOOD)
    assert digest == sha256(local)


def test_an_interrupted_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.content = bytes(range(256)) * 40
    server.stop_after = 3000
    for _ in range(2):
        with pytest.raises(UserError, match=r"could not download .* run the same command again to resume"):
            download(server.url, tmp_path / "file")
    server.stop_after = None
    download(server.url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == server.content
    assert server.asked == [None, "bytes=3000-", "bytes=6000-"]
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_that_changed_or_a_server_without_ranges_starts_anew(
    server: Server, tmp_path: Path, ranges: bool
) -> None:
    server.content, server.stop_after, server.ranges = b"a" * 5000, 2000, ranges
    with pytest.raises(UserError):
        download(server.url, tmp_path / "file")
    server.content, server.stop_after, server.tag = b"b" * 4000, None, '"two"'
    download(server.url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"b" * 4000


def test_a_download_that_was_complete_but_not_renamed_is_fetched_again(server: Server, tmp_path: Path) -> None:
    server.content = b"c" * 3000
    (tmp_path / "file.part").write_bytes(b"c" * 3000)
    (tmp_path / "file.tag").write_text(server.tag)
    download(server.url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == server.content


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(server: Server, tmp_path: Path) -> None:
    server.content = GOOD
    with pytest.raises(UserError, match=r"is not the expected file \(its SHA-256 is [0-9a-f]{64}\)"):
        fetch_archive(Archive(server.url, WANTED, "0" * 64), tmp_path / "set")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>moved</html>", "is not a complete archive"),
        (GOOD[: len(GOOD) // 2], "is not a complete archive"),
        (b"", "is not a complete archive"),
        (zipped({"other/file.csv": b"1,2"}), "holds none of the files of this data set"),
    ],
)
def test_something_else_than_the_archive_is_refused(
    server: Server, tmp_path: Path, content: bytes, message: str
) -> None:
    server.content = content
    with pytest.raises(UserError, match=message):
        fetch_archive(Archive(server.url, WANTED), tmp_path / "set")
    assert [name for name in names(tmp_path) if name.startswith("set/")] == []


def test_a_damaged_member_leaves_nothing_behind(tmp_path: Path) -> None:
    local = tmp_path / "archive.zip"
    local.write_bytes(GOOD.replace(b"two", b"owt", 1))  # its CRC no longer fits; s1 before it is fine
    with pytest.raises(UserError, match=r"is not a complete archive \(Bad CRC-32"):
        fetch_archive(Archive("", WANTED), tmp_path / "set", str(local))
    assert names(tmp_path / "set") == []
    assert local.exists()  # somebody's own file is never removed


def test_archives_inside_archives_and_tars_are_understood(tmp_path: Path) -> None:
    """UCI packs a zip into a zip; OHSUMED is a tar.gz."""
    nested = tmp_path / "nested.zip"
    nested.write_bytes(zipped({"readme.pdf": b"%", "inner.zip": GOOD}))
    assert fetch_archive(Archive("", WANTED), tmp_path / "a", str(nested))[0] == 3
    packed = tmp_path / "packed.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        for name in ("x/data/s1.txt", "x/data/s9.txt"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("x/data/s3.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert fetch_archive(Archive("", WANTED), tmp_path / "b", str(packed))[0] == 2
    assert names(tmp_path / "a") == ["data/s1.txt", "data/s2.txt", "data/s9.txt"]
    assert names(tmp_path / "b") == ["data/s1.txt", "data/s9.txt"]
    packed.write_bytes(packed.read_bytes()[:-30])
    with pytest.raises(UserError, match="is not a complete archive"):
        fetch_archive(Archive("", WANTED), tmp_path / "c", str(packed))


def test_what_a_server_answers_is_told(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(UserError, match="answered 404 Not Found; download the file yourself, or try later"):
        download(server.url, tmp_path / "file")
    with pytest.raises(UserError, match=r"could not download http://127.0.0.1:9/x"):
        download("http://127.0.0.1:9/x", tmp_path / "file")
    with pytest.raises(UserError, match=r"there is no file nowhere.zip; give an archive's path or address"):
        fetch_archive(Archive("", WANTED), tmp_path / "set", "nowhere.zip")
