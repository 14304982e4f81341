"""Model files from a hub: an HTTP server of the test plays it, `huggingface_hub` talks to it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils._shared_blobs import publish_blob_to_shared_store

from server.cli.main import main
from server.config import ConfigError, HuggingFaceFile, ModelSource, load_config
from server.weights import WeightsError, cached, fetch, remove
from server.weights import huggingface as hub
from tests.hub_server import COMMIT, REPO, Hub, playing

NEXT = "b" * 40
CONTENT = bytes(range(256)) * 1024
FILE = HuggingFaceFile(REPO, "sub/tiny.gguf")
SOURCE = ModelSource(huggingface=FILE)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with playing(tmp_path, monkeypatch) as served:
        served.files = {FILE.file: CONTENT}
        yield served


def left_behind(directory: Path) -> list[str]:
    """What the cache holds of files' content, whole or not."""
    return sorted(path.name for path in (directory / "hub").glob("models--*/blobs/*"))


def test_a_file_comes_once_and_lies_where_the_hubs_own_programs_look(served: Hub, tmp_path: Path) -> None:
    assert cached(SOURCE) is None
    seen: list[tuple[int, int]] = []
    path = fetch(SOURCE, progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert path == tmp_path / "hub/models--someone--tiny/snapshots" / COMMIT / FILE.file
    assert seen[0] == (0, len(CONTENT)) and seen[-1] == (len(CONTENT), len(CONTENT)) and len(seen) > 10
    assert seen == sorted(seen)
    assert left_behind(tmp_path) == [hashlib.sha256(CONTENT).hexdigest()]
    asked = len(served.asked)
    assert fetch(SOURCE) == cached(SOURCE) == path
    assert len(served.asked) == asked, "nobody is asked for what is here"


class GaveUp(Exception):
    pass


def test_a_download_that_was_given_up_goes_on_where_it_was(served: Hub, tmp_path: Path) -> None:
    def give_up(done: int, _: int) -> None:
        if done > 100_000:
            raise GaveUp

    with pytest.raises(GaveUp):
        fetch(SOURCE, progress=give_up)
    assert cached(SOURCE) is None
    (half,) = (tmp_path / "hub").glob("models--*/blobs/*.incomplete")
    size = half.stat().st_size
    assert 0 < size < len(CONTENT)
    seen: list[int] = []
    assert fetch(SOURCE, progress=lambda done, _: seen.append(done)).read_bytes() == CONTENT
    assert served.downloads == [None, f"bytes={size}-"]
    assert seen[0] == size
    assert left_behind(tmp_path) == [hashlib.sha256(CONTENT).hexdigest()]


@pytest.mark.slow
def test_a_process_that_was_killed_is_taken_up_too(served: Hub, tmp_path: Path) -> None:
    served.cut = [150_000]
    program = (
        "import os\nfrom huggingface_hub import constants, file_download\nfrom server.cli.main import main\n"
        "constants.DOWNLOAD_CHUNK_SIZE = 4096\n"
        # When the connection breaks off, the process dies where the library would wait for its next try.
        "file_download.time.sleep = lambda _: os._exit(9)\n"
        "main(['pull', 'someone/tiny:sub/tiny.gguf'])\n"
    )
    given = {"HF_ENDPOINT": served.url, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_TOKEN": "hf_secret"}
    environment = {**os.environ, **given}
    command = [sys.executable, "-c", program]
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert killed.returncode == 9, killed.stderr
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    (first, second) = served.downloads
    assert first is None and second is not None and 0 < int(second[6:-1]) <= 150_000
    assert Path(again.stdout.strip()).read_bytes() == CONTENT
    assert served.authorization == {"Bearer hf_secret"}
    assert "hf_secret" not in again.stdout + again.stderr + killed.stdout + killed.stderr


@pytest.mark.slow
def test_a_connection_that_breaks_off_is_taken_up(served: Hub) -> None:
    served.cut = [150_000]
    assert fetch(SOURCE).read_bytes() == CONTENT
    first, second = served.downloads
    assert first is None and second is not None


@pytest.mark.slow
def test_a_hub_without_ranges_sends_all_again(served: Hub) -> None:
    served.cut, served.ranges = [150_000], False
    assert fetch(SOURCE).read_bytes() == CONTENT


def test_what_came_damaged_is_not_used_and_not_kept(served: Hub, tmp_path: Path) -> None:
    served.damaged = True
    with pytest.raises(WeightsError, match=r"came damaged.*run again"):
        fetch(SOURCE)
    assert cached(SOURCE) is None
    assert left_behind(tmp_path) == []
    served.damaged = False
    assert fetch(SOURCE).read_bytes() == CONTENT


def test_a_configured_digest_is_held_before_anything_is_downloaded(served: Hub) -> None:
    right = hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(WeightsError, match=f"has SHA-256 {right} there, not {'0' * 64}: it is not downloaded"):
        fetch(ModelSource(huggingface=replace(FILE, sha256=("0" * 64,))))
    assert served.downloads == []
    assert fetch(ModelSource(huggingface=replace(FILE, sha256=(right,)))).read_bytes() == CONTENT
    # Another digest for what is here already is no less wrong.
    with pytest.raises(WeightsError, match="SHA-256"):
        fetch(ModelSource(huggingface=replace(FILE, sha256=("0" * 64,))))


def test_all_parts_of_a_split_model_come_from_one_commit(served: Hub) -> None:
    parts = [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    served.files = {part: part.encode() * 1000 for part in parts}
    file = HuggingFaceFile.parse(f"someone/tiny:{parts[0]}")
    assert file.parts == tuple(parts)
    seen: list[tuple[int, int]] = []
    path = fetch(ModelSource(huggingface=file), progress=lambda done, total: seen.append((done, total)))
    assert path.name == parts[0]
    assert [(path.parent / part).read_bytes() for part in parts] == list(served.files.values())
    total = sum(map(len, served.files.values()))
    assert seen == sorted(seen) and seen[-1] == (total, total)
    (path.parent / parts[2]).unlink()
    assert cached(ModelSource(huggingface=file)) is None, "one part is missing"
    del served.files[parts[2]]
    with pytest.raises(WeightsError, match="no such file"):
        fetch(ModelSource(huggingface=file))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((401, "GatedRepo"), "someone/tiny is gated: accept its terms at .*/someone/tiny"),
        ((403, "GatedRepo"), "someone/tiny is gated: .*HF_TOKEN"),
        ((401, ""), "no repository someone/tiny, or it is private: .*HF_TOKEN"),
        ((403, ""), "no repository someone/tiny, or it is private"),
        ((404, "RepoNotFound"), "no repository someone/tiny"),
        ((404, "EntryNotFound"), "no such file in revision main: sub/tiny.gguf"),
        ((404, "RevisionNotFound"), "no revision main"),
        ((500, ""), "answers 500"),
        ((429, ""), "answers 429"),
    ],
)
def test_each_refusal_says_what_to_do(served: Hub, refusal: tuple[int, str], words: str) -> None:
    served.refusal = refusal
    with pytest.raises(WeightsError, match=words):
        fetch(SOURCE)
    assert served.downloads == []


def test_a_token_that_does_not_open_the_repository_is_said_and_not_shown(
    served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    served.refusal = (403, "GatedRepo")
    with pytest.raises(WeightsError, match="the token given does not open it") as caught:
        fetch(SOURCE)
    assert "hf_secret" not in str(caught.value)
    assert served.authorization == {"Bearer hf_secret"}


def test_what_is_too_large_for_plain_http_is_said(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own protocol, which takes over then, is not played here."""
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", 1000)
    with pytest.raises(WeightsError, match="too large"):
        fetch(SOURCE)


def test_without_a_network_what_is_here_is_enough(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as offline:
        offline.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(WeightsError, match="HF_HUB_OFFLINE"):
            fetch(SOURCE)
    path = fetch(SOURCE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(SOURCE) == path


def test_a_hub_that_cannot_be_reached_is_said(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = "http://127.0.0.1:1"
    monkeypatch.setattr(constants, "ENDPOINT", nowhere)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", nowhere + "/{repo_id}/resolve/{revision}/{filename}")
    with pytest.raises(WeightsError, match=r"cannot be reached .*is the network there"):
        fetch(SOURCE)


def test_refreshing_follows_the_branch_and_keeps_what_is_the_same(served: Hub) -> None:
    old = fetch(SOURCE)
    downloads = len(served.downloads)
    served.branches["main"] = NEXT
    assert fetch(SOURCE) == old
    new = fetch(SOURCE, refresh=True)
    assert new.parent.parent.name == NEXT and new.read_bytes() == CONTENT
    assert len(served.downloads) == downloads, "the content is the same"
    served.branches["main"], served.files[FILE.file] = "c" * 40, CONTENT[::-1]
    assert fetch(SOURCE, refresh=True).read_bytes() == CONTENT[::-1]
    pinned = ModelSource(huggingface=replace(FILE, revision=COMMIT))
    assert fetch(pinned).read_bytes() == CONTENT, "the old commit is still here"


def test_removing_gives_the_bytes_back_and_leaves_other_files(served: Hub, tmp_path: Path) -> None:
    other = replace(FILE, file="other.gguf")
    served.files["other.gguf"] = b"other" * 100
    fetch(SOURCE)
    fetch(ModelSource(huggingface=other))
    assert hub.remove(FILE) == len(CONTENT)
    assert cached(SOURCE) is None
    assert cached(ModelSource(huggingface=other)) is not None
    assert hub.remove(FILE) == 0
    assert hub.remove(other) == 500
    assert left_behind(tmp_path) == []


def test_content_that_two_names_share_goes_with_the_last(served: Hub, tmp_path: Path) -> None:
    twin = replace(FILE, file="twin.gguf")
    served.files["twin.gguf"] = CONTENT
    fetch(SOURCE)
    fetch(ModelSource(huggingface=twin))
    assert len(served.downloads) == 1
    assert hub.remove(FILE) == 0
    assert hub.remove(twin) == len(CONTENT)


XET = "5e" * 32
"""What the shared store calls the content by: no SHA-256 of it."""


def share(directory: Path, repo: str = REPO, xet: str = XET) -> Path:
    """Moves a repository's only content to the store that all repositories share, as the library does with a download
    by its own protocol; gives the blob that then leads there."""
    (blob,) = (directory / "hub" / f"models--{repo.replace('/', '--')}" / "blobs").iterdir()
    assert publish_blob_to_shared_store(
        blob_path=str(blob), xet_hash=xet, cache_dir=directory / "hub", expected_size=blob.stat().st_size
    )
    assert blob.is_symlink() and blob.resolve() == directory / "hub/blobs" / xet[:2] / xet
    return blob


def pinned(content: bytes = CONTENT) -> HuggingFaceFile:
    return replace(FILE, sha256=(hashlib.sha256(content).hexdigest(),))


def test_content_in_the_shared_store_is_known_by_its_digest(served: Hub, tmp_path: Path) -> None:
    path = fetch(SOURCE)
    share(tmp_path)
    asked = len(served.asked)
    assert cached(ModelSource(huggingface=pinned())) == fetch(ModelSource(huggingface=pinned())) == path
    assert len(served.asked) == asked
    assert fetch(ModelSource(huggingface=pinned()), refresh=True) == path
    assert served.downloads == [None], "it is not downloaded again"
    assert cached(ModelSource(huggingface=replace(FILE, sha256=(XET,)))) is None, "the store's name is no digest"
    assert hub.held() == {FILE: len(CONTENT)}


def test_a_digest_is_read_from_the_content_where_no_name_tells_it(served: Hub) -> None:
    """As on file systems without links, and of small files, which the hub does not name by a SHA-256."""
    path = fetch(SOURCE)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    assert cached(ModelSource(huggingface=pinned())) == path
    assert cached(ModelSource(huggingface=pinned(b""))) is None


def test_removing_takes_content_out_of_the_shared_store(served: Hub, tmp_path: Path) -> None:
    fetch(SOURCE)
    content = share(tmp_path).resolve()
    assert hub.remove(FILE) == len(CONTENT)
    assert not content.exists() and cached(SOURCE) is None
    assert not (tmp_path / "hub/models--someone--tiny").exists()
    assert hub.remove(FILE) == 0


def test_content_that_two_repositories_share_goes_with_the_last(served: Hub, tmp_path: Path) -> None:
    first, second = SOURCE, ModelSource(huggingface=replace(FILE, repo="other/copy"))
    fetch(first)
    content = share(tmp_path).resolve()
    served.repo, served.xet = "other/copy", {FILE.file: XET}
    path = fetch(second)
    assert path.resolve() == content and served.downloads == [None], "it is here already"
    assert hub.remove(FILE) == 0
    assert cached(first) is None and cached(second) == path and path.read_bytes() == CONTENT
    assert hub.remove(replace(FILE, repo="other/copy")) == len(CONTENT)
    assert not content.exists()


def test_links_that_lead_nowhere_are_removed_too(served: Hub, tmp_path: Path) -> None:
    fetch(SOURCE)
    share(tmp_path).resolve().unlink()
    assert cached(SOURCE) is None
    assert hub.remove(FILE) == 0
    assert not (tmp_path / "hub/models--someone--tiny").exists()
    assert fetch(SOURCE).read_bytes() == CONTENT


def test_a_cache_that_the_library_cannot_read_is_said(served: Hub, tmp_path: Path) -> None:
    fetch(SOURCE)
    (tmp_path / "hub/models--someone--tiny/refs/gone").write_text("f" * 40)
    with pytest.raises(WeightsError, match=r"the cache of someone/tiny is damaged: remove .*/models--someone--tiny"):
        remove(SOURCE)
    assert cached(SOURCE) is not None


@pytest.mark.parametrize("answers", [1, 2, 3])
def test_a_hub_that_stops_answering_is_said(served: Hub, answers: int) -> None:
    served.refusal, served.answers = (403, ""), answers
    with pytest.raises(WeightsError, match="no repository someone/tiny, or it is private"):
        fetch(SOURCE)


def written(directory: Path, source: str) -> Path:
    file = directory / "models.toml"
    file.write_text(f'[models.tiny]\nmodel = "tiny"\n[models.tiny.source]\n{source}\n')
    return file


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ('huggingface = "a/b:c.gguf"', HuggingFaceFile("a/b", "c.gguf")),
        ('huggingface = "a-1/b.c:d/e f.gguf"\nrevision = "v1"', HuggingFaceFile("a-1/b.c", "d/e f.gguf", "v1")),
        (f'huggingface = "a/b:c"\nsha256 = "{"0" * 64}"', HuggingFaceFile("a/b", "c", sha256=("0" * 64,))),
        (
            f'huggingface = "a/b:c-00001-of-00002.gguf"\nsha256 = ["{"0" * 64}", "{"1" * 64}"]',
            HuggingFaceFile("a/b", "c-00001-of-00002.gguf", sha256=("0" * 64, "1" * 64)),
        ),
    ],
)
def test_the_configuration_names_a_file_of_a_hub(tmp_path: Path, source: str, file: HuggingFaceFile) -> None:
    assert load_config(written(tmp_path, source)).connections[0].source == ModelSource(huggingface=file)


@pytest.mark.parametrize(
    ("source", "key", "words"),
    [
        ('huggingface = "a/b"', "huggingface", "owner/repo:file"),
        ('huggingface = "b:c.gguf"', "huggingface", "owner/repo:file"),
        ('huggingface = "a/b:../c.gguf"', "huggingface", "owner/repo:file"),
        ('huggingface = "a/b:/c.gguf"', "huggingface", "owner/repo:file"),
        ('huggingface = "a/b:c-00002-of-00002.gguf"', "huggingface", "first part"),
        ('huggingface = "a/b:c-00001-of-99999.gguf"', "huggingface", "at most"),
        ('huggingface = "a/b:c"\nrevision = "../../x"', "revision", "must match"),
        ('huggingface = "a/b:c"\nsha256 = "0"', "sha256", "no SHA-256"),
        (f'huggingface = "a/b:c-00001-of-00002.gguf"\nsha256 = "{"0" * 64}"', "sha256", "each of the 2 parts"),
        ('huggingface = "a/b:c"\npath = "x"', "", "exactly one"),
        ('path = "x"\nrevision = "main"', "revision", "unknown key"),
    ],
)
def test_the_configuration_refuses_what_is_none(tmp_path: Path, source: str, key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_config(written(tmp_path, source))
    assert caught.value.key == key


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_pull_list_and_rm(
    served: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    served.files["other.gguf"] = b"other" * 100_000
    models = ("--models", str(written(tmp_path, f'huggingface = "{FILE}"')))
    assert command(capsys, "list", *models)[1] == "    not here  someone/tiny:sub/tiny.gguf  tiny\n"
    status, out, err = command(capsys, "pull", *models)
    assert (status, Path(out.strip()).read_bytes(), err) == (0, CONTENT, f"Fetching {FILE}\n")
    assert command(capsys, "pull", "someone/tiny:other.gguf")[0] == 0
    assert command(capsys, "list", *models)[1].splitlines() == [
        "      0.5 MB  someone/tiny:other.gguf",
        "      0.3 MB  someone/tiny:sub/tiny.gguf  tiny",
    ]
    assert command(capsys, "rm", "tiny", *models)[1] == "someone/tiny:sub/tiny.gguf: 0.3 MB freed\n"
    assert command(capsys, "rm", "someone/tiny:other.gguf")[1] == "someone/tiny:other.gguf: 0.5 MB freed\n"
    assert command(capsys, "list", *models)[1] == "    not here  someone/tiny:sub/tiny.gguf  tiny\n"


def test_rm_leaves_the_owners_own_files_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF")
    status, _, err = command(capsys, "rm", "tiny", "--models", str(written(tmp_path, f'path = "{own}"')))
    assert status == 1 and "left alone" in err and own.exists()


def test_what_is_neither_a_file_nor_a_connection_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = command(capsys, "pull", "nothing", "--models", str(tmp_path / "none.toml"))
    assert status == 1 and "nothing is neither owner/repo:file nor a GGUF nor the key" in err
