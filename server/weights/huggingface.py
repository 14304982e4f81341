"""Model files from the Hugging Face Hub, in that hub's own cache, where its other programs find them too.

Network, tokens (`HF_TOKEN`, or its own login), endpoint (`HF_ENDPOINT`) and offline mode are `huggingface_hub`'s. It
throws away what an interrupted download had; so each file comes here first, beside where it will lie, and goes on where
it was left. A repository's `blobs` names a file by the SHA-256 that the hub gives for it: nothing else is put under
that name. Such a blob may be a link in turn, into the store that all repositories share: names there are Xet hashes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server.config import HuggingFaceFile
from server.weights.store import Progress, WeightsError, disk_complaint

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, CachedRepoInfo, HFCacheInfo

_SHA256 = re.compile(r"[0-9a-f]{64}")


def cached(file: HuggingFaceFile) -> Path | None:
    """The (first) file where all its parts are in the cache, with the digests wanted; nobody is asked."""
    from huggingface_hub import try_to_load_from_cache

    found = [try_to_load_from_cache(file.repo, part, revision=file.revision) for part in file.parts]
    paths = [Path(path) for path in found if isinstance(path, str)]
    if len(paths) != len(found) or (file.sha256 and [*file.sha256] != [_sha256(path) for path in paths]):
        return None
    return paths[0]


def fetch(file: HuggingFaceFile, *, progress: Progress | None = None) -> Path:
    """Ask the hub for the file as its revision has it now, and download what is missing of its parts.

    What `progress` raises ends the download; the next one goes on from there. Raises WeightsError.
    """
    from httpx2 import HTTPError
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
    from huggingface_hub.utils import build_hf_headers

    try:
        # A split model is all of one commit, whatever is pushed meanwhile.
        revision, found = file.revision, []
        for part in file.parts:
            meta = get_hf_file_metadata(hf_hub_url(file.repo, part, revision=revision), headers=build_hf_headers())
            if not (meta.commit_hash and meta.etag and meta.size is not None):
                raise WeightsError(f"{_hub_url()} does not say what {file.repo}:{part} is; is it a hub?")
            revision = meta.commit_hash
            found.append((part, meta.etag, meta.size))
        for (part, etag, _), sha256 in zip(found, file.sha256, strict=bool(file.sha256)):
            if _SHA256.fullmatch(etag) and etag != sha256:
                raise WeightsError(f"{file.repo}:{part} has SHA-256 {etag} there, not {sha256}: it is not downloaded")
        total = sum(size for _, _, size in found)
        before = 0
        for part, etag, size in found:
            told = None if progress is None else _shifted(progress, before, total)
            _download(file.repo, part, revision, etag, size, told)
            before += size
        paths = [_link(file.repo, part, revision) for part in file.parts]
        _save_ref(file.repo, file.revision, revision)
    except OfflineModeIsEnabled as error:
        raise WeightsError(f"{file} is not here yet, and HF_HUB_OFFLINE forbids to ask for it") from error
    except LocalEntryNotFoundError as error:  # the library's word for what has happened on the way
        raise WeightsError(_hub_complaint(file, error.__cause__ or error)) from error
    except HTTPError as error:
        raise WeightsError(_hub_complaint(file, error)) from error
    except OSError as error:
        raise WeightsError(f"{file} cannot be stored: {disk_complaint(error)}") from error
    for path, sha256 in zip(paths, file.sha256, strict=bool(file.sha256)):
        if (digest := _sha256(path)) != sha256:
            raise WeightsError(f"{path.name} has SHA-256 {digest}, not {sha256}: it is not used")
    return paths[0]


def held() -> dict[HuggingFaceFile, int]:
    """The whole GGUF files in the cache, whoever put them there, and their bytes; of split ones all parts together."""
    sizes = {
        (repository.repo_id, name): each.size_on_disk
        for repository in _scan().repos
        if repository.repo_type == "model"
        for name, each in _files(repository)
        if name.endswith(".gguf")
    }
    found = {}
    for repo, name in sorted(sizes):
        try:
            file = HuggingFaceFile.parse(f"{repo}:{name}")
        except ValueError:  # a later part, counted with its first
            continue
        if all((repo, part) in sizes for part in file.parts):
            found[file] = sum(sizes[repo, part] for part in file.parts)
    return found


def remove(file: HuggingFaceFile) -> int:
    """Take the file's parts out of the cache, whole or not, in every revision; the bytes that gave back.

    Content that other files or repositories share stays for them. Raises WeightsError where the cache cannot be read.
    """
    place = _repository(file.repo)
    for link in (*place.glob("snapshots/**/*"), *place.glob("blobs/*")):
        if not link.exists():
            link.unlink()  # it leads nowhere, for which the library refuses the whole repository
    scan = _scan()
    chosen = [
        each
        for repository in scan.repos
        if repository.repo_path == place
        for name, each in _files(repository)
        if name in file.parts
    ]
    if not chosen and any((each / part).exists() for each in place.glob("snapshots/*") for part in file.parts):
        raise WeightsError(f"the cache of {file.repo} is damaged: remove {place} as a whole")
    deletion = scan.delete_files(*chosen)
    freed = deletion.expected_freed_size
    deletion.execute()
    for half in scan.incomplete_files:
        if half.file_path.parent == place / "blobs":
            freed += half.size_on_disk
            half.file_path.unlink()
    if place.exists() and not any(place.glob("blobs/*")):
        shutil.rmtree(place)
    return freed


def _scan() -> HFCacheInfo:
    """The library's listing of its cache."""
    from huggingface_hub import HFCacheInfo, constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return HFCacheInfo(size_on_disk=0, repos=frozenset(), incomplete_files=frozenset(), warnings=[])


def _files(repository: CachedRepoInfo) -> Iterator[tuple[str, CachedFileInfo]]:
    """Its files in every revision, by their paths inside the repository."""
    for revision in repository.revisions:
        for each in revision.files:
            yield each.file_path.relative_to(revision.snapshot_path).as_posix(), each


def _repository(repo: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser().resolve() / f"models--{repo.replace('/', '--')}"


def _download(repo: str, part: str, revision: str, etag: str, size: int, progress: Progress | None) -> None:
    """Have the part in the cache under its digest; whole and right, or not at all."""
    from huggingface_hub import constants, hf_hub_download, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    if hf_hub_download(repo, part, revision=revision, dry_run=True).is_cached:
        # Perhaps in the store that all repositories share alone, from where the library links it.
        if progress is not None:
            progress(size, size)
        return
    blob = _repository(repo) / "blobs" / etag
    if size > constants.MAX_HTTP_DOWNLOAD_SIZE:
        # The hub serves so much only by its own protocol, which checks what it brings.
        try:
            hf_hub_download(repo, part, revision=revision, tqdm_class=_bar(progress, 0, size))
        except ValueError as error:
            raise WeightsError(
                f"{repo}:{part} is too large for this installation of huggingface_hub: {error}"
            ) from error
        return
    lock = Path(constants.HF_HUB_CACHE) / ".locks" / _repository(repo).name / f"{etag}.lock"
    for directory in (blob.parent, lock.parent):
        directory.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if blob.exists():
            if progress is not None:
                progress(size, size)
            return
        half = blob.with_name(f"{etag}.incomplete")
        with half.open("ab") as out:
            if out.tell() > size:
                out.truncate(0)
            http_get(
                hf_hub_url(repo, part, revision=revision),
                out,
                resume_size=out.tell(),
                headers=build_hf_headers(),
                expected_size=size,
                tqdm_class=_bar(progress, out.tell(), size),
            )
            out.flush()
            os.fsync(out.fileno())
        if _SHA256.fullmatch(etag) and (digest := _sha256(half)) != etag:
            half.unlink()
            raise WeightsError(
                f"{repo}:{part} came damaged (SHA-256 {digest}, not {etag}); run again to download it anew"
            )
        os.replace(half, blob)


def _link(repo: str, part: str, commit: str) -> Path:
    """The part's name in the snapshot of its commit, which leads to its content."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(repo, part, revision=commit))


def _save_ref(repo: str, revision: str, commit: str) -> None:
    """Remember which commit a branch or tag stands for."""
    if revision != commit:
        ref = _repository(repo) / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit)


def _shifted(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _: progress(before + done, total)


def _bar(progress: Progress | None, done: int, size: int) -> Any:
    """A progress bar, to `huggingface_hub`, that shows nothing and tells `progress`."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__(disable=True)
            self.done = done
            self.update(0)

        def update(self, n: float | None = 1) -> None:
            self.done += int(n or 0)
            if progress is not None:
                progress(self.done, size)

    return Bar


def _sha256(path: Path) -> str:
    """The file's SHA-256: by the name of the blob that the file is a link to, else by its content.

    That blob is where the first link leads, not the last: names in the shared store are Xet hashes.
    """
    if path.is_symlink():
        blob = path.readlink()
        if blob.parent.name == "blobs" and _SHA256.fullmatch(blob.name):
            return blob.name
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hub_url() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _hub_complaint(file: HuggingFaceFile, error: BaseException) -> str:
    """The complaint for an answer of the hub, or for none. Answers hold no secret, but say little."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if not isinstance(error, HfHubHTTPError) or isinstance(error, LocalEntryNotFoundError):
        reason = type(error).__name__
        return f"{_hub_url()} cannot be reached ({reason}); is the network there? Running again continues"
    status = error.response.status_code
    login = "give one by HF_TOKEN or `hf auth login`" if get_token() is None else "the token given does not open it"
    if isinstance(error, GatedRepoError):
        return f"{file.repo} is gated: accept its terms at {_hub_url()}/{file.repo}; a token is needed too ({login})"
    if isinstance(error, RepositoryNotFoundError) or status in (401, 403):
        return f"{_hub_url()} has no repository {file.repo}, or it is private: a token is needed then ({login})"
    if isinstance(error, RevisionNotFoundError):
        return f"{file.repo} has no revision {file.revision}"
    if isinstance(error, EntryNotFoundError):
        return f"{file.repo} has no such file in revision {file.revision}: {file.file} (or a part of it)"
    return f"{_hub_url()} answers {status} for {file}; running again continues"
