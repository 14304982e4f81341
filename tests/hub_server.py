"""An HTTP server that plays the Hugging Face Hub, as far as fetching a file goes."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

COMMIT = "a" * 40
REPO = "someone/tiny"


@dataclass
class Hub:
    """What the server has, how it misbehaves, and what it was asked."""

    repo: str = REPO
    files: dict[str, bytes] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    refusal: tuple[int, str] | None = None
    """Status and `X-Error-Code` of every answer after the first `answers`."""
    answers: int = 0
    xet: dict[str, str] = field(default_factory=dict)
    """Xet hashes of the files that have one."""
    ranges: bool = True
    damaged: bool = False
    cut: list[int] = field(default_factory=list)
    """Bytes after which the next answers break off."""
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and range."""
    authorization: set[str | None] = field(default_factory=set)
    url: str = ""

    @property
    def downloads(self) -> list[str | None]:
        """The ranges of the requests for content."""
        return [range_ for method, path, range_ in self.asked if method == "GET" and "/resolve/" in path]


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()

        def do_HEAD(self) -> None:
            self.serve()

        def do_GET(self) -> None:
            self.serve()

        def serve(self) -> None:
            hub.asked.append((self.command, self.path, self.headers["Range"]))
            found = re.fullmatch(r"/(.+)/resolve/([^/]+)/(.+)", self.path)
            if found is not None:
                hub.authorization.add(self.headers["Authorization"])
            if hub.refusal is not None and len(hub.asked) > hub.answers:
                status, code = hub.refusal
                self.answer(status, X_Error_Code=code, Content_Length="0")
                return
            if found is None or found[1] != hub.repo:
                self.answer(404, X_Error_Code="RepoNotFound", Content_Length="0")
                return
            commit = hub.branches.get(found[2], found[2] if found[2] in hub.branches.values() else None)
            if commit is None or found[3] not in hub.files:
                code = "RevisionNotFound" if commit is None else "EntryNotFound"
                self.answer(404, X_Error_Code=code, Content_Length="0")
                return
            content = hub.files[found[3]]
            etag = hashlib.sha256(content).hexdigest()
            start = 0
            if hub.ranges and (wanted := self.headers["Range"]):
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            body = content[start:] if not hub.damaged else bytes(len(content) - start)
            self.answer(
                206 if start else 200,
                X_Repo_Commit=commit,
                ETag=f'"{etag}"',
                Content_Length=str(len(body)),
                **({"X_Xet_Hash": hub.xet[found[3]], "X_Xet_Refresh_Route": "/none"} if found[3] in hub.xet else {}),
                **({"Content_Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}),
            )
            if self.command == "GET":
                if hub.cut:
                    self.wfile.write(body[: hub.cut.pop(0)])
                    self.close_connection = True
                else:
                    self.wfile.write(body)

    return Handler


@contextmanager
def playing(directory: Path, patch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, and the library's settings as its environment variables would make them: its cache is `directory`/hub."""
    served = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(served))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    patch.setattr(constants, "ENDPOINT", served.url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", served.url + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_CACHE", str(directory / "hub"))
    patch.setattr(constants, "HF_TOKEN_PATH", str(directory / "token"))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4096)
    patch.delenv("HF_TOKEN", raising=False)
    yield served
    server.shutdown()
    server.server_close()
    thread.join()
