"""State on disk between runs: the shells' tokens, the owner's token and a secret, in the user's state directory.

A shell's token is 256 random bits, so one SHA-256 is as good at rest as a slow hash (http-binding, "Who is calling").
Files are written whole, then renamed into place, and are readable by the user alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

Consent = Literal["ask", "shell", "always"]
Select = Literal["default", "ask"]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class StateError(Exception):
    """The state directory cannot be used, or a name is unknown, taken or malformed. The message holds no token."""


@dataclass(frozen=True, slots=True)
class TokenPolicy:
    """One token as the store knows it: its name, what the owner allows it, and the digest that recognises it."""

    name: str
    consent: Consent
    select: Select
    created: float
    """Seconds since the epoch."""
    digest: str
    """SHA-256 of the token, hexadecimal."""


Tokens = list[TokenPolicy]


def default_state_dir() -> Path:
    """The user's state directory for this program (XDG Base Directory Specification, and its equivalents)."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        # The specification says to ignore a relative path here.
        given = os.environ.get("XDG_STATE_HOME", "")
        base = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return base / "nap-llm"


class TokenStore:
    """The shells' tokens, in one file that several processes may read and change.

    `nap-llm token` changes the file while a server runs: every `find` looks at the file's stamp first, and `refresh`
    does so alone. `on_revoked` is called with the name of each token that a re-read no longer finds.
    """

    def __init__(self, directory: Path, *, on_revoked: Callable[[str], None] | None = None) -> None:
        self.directory = directory
        self._path = directory / "tokens.json"
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: tuple[TokenPolicy, ...] = ()
        self.on_revoked = on_revoked
        make_private(directory)
        self.refresh()

    def create(self, name: str, *, consent: Consent = "ask", select: Select = "default") -> str:
        """A new token under a new name. The returned text is shown once and stored nowhere."""
        if not _NAME.fullmatch(name):
            raise StateError("a token's name is 1 to 64 of A-Z a-z 0-9 _ . -")
        if consent not in get_args(Consent) or select not in get_args(Select):
            raise StateError("unknown policy")
        token = secrets.token_hex(32)  # no token begins with a dash, which a command line would take for an option
        policy = TokenPolicy(name, consent, select, time.time(), _digest(token))
        with self._changing() as tokens:
            if any(each.name == name for each in tokens):
                raise StateError(f"a token named {name} exists already")
            tokens.append(policy)
        return token

    def revoke(self, name: str) -> None:
        """Takes the token away. Raises StateError where none has that name."""
        with self._changing() as tokens:
            kept = [each for each in tokens if each.name != name]
            if len(kept) == len(tokens):
                raise StateError(f"no token is named {name}")
            tokens[:] = kept

    def find(self, token: str) -> TokenPolicy | None:
        """The token's policy, or None. The time taken does not depend on how much of a digest agrees."""
        self.refresh()
        digest = _digest(token)
        found = None
        for each in self._tokens:
            if hmac.compare_digest(each.digest, digest):
                found = each
        return found

    def list(self) -> tuple[TokenPolicy, ...]:
        """All tokens, in the order in which they were made."""
        self.refresh()
        return self._tokens

    def check(self) -> None:
        """Raises StateError where tokens cannot be read, or none could be made or revoked."""
        if not os.access(self.directory, os.R_OK | os.W_OK | os.X_OK):
            raise StateError(f"{self.directory} cannot be used")
        try:
            self._read()
        except OSError as error:
            raise StateError(f"{self._path} cannot be read: {error.strerror}") from error

    def refresh(self) -> None:
        """Reads the file again where it has changed since the last look."""
        try:
            status = self._path.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            stamp = None
        if stamp == self._stamp:
            return
        before, self._tokens, self._stamp = self._tokens, (), stamp
        try:
            # A damaged file lets nobody in.
            self._tokens = self._read()
        finally:
            alive = {each.digest for each in self._tokens}
            for each in before:
                if each.digest not in alive and self.on_revoked is not None:
                    self.on_revoked(each.name)

    @contextmanager
    def _changing(self) -> Iterator[Tokens]:
        """The tokens as the file has them now, written back afterwards; one process at a time."""
        with open_private(self.directory / "tokens.lock", os.O_RDWR | os.O_CREAT) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = [*self._read()]
            yield tokens
            write_private(self._path, json.dumps([asdict(each) for each in tokens], indent=1).encode())
        self.refresh()

    def _read(self) -> tuple[TokenPolicy, ...]:
        try:
            document = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return ()
        except ValueError as error:
            raise self._damaged() from error
        if not isinstance(document, Sequence):
            raise self._damaged()
        return tuple(self._policy(each) for each in document)

    def _policy(self, value: Any) -> TokenPolicy:
        try:
            policy = TokenPolicy(**{each.name: value[each.name] for each in fields(TokenPolicy)})
        except (KeyError, TypeError) as error:
            raise self._damaged() from error
        if policy.consent not in get_args(Consent) or policy.select not in get_args(Select):
            raise self._damaged()
        return policy

    def _damaged(self) -> StateError:
        return StateError(f"{self._path} is damaged; remove it to start without tokens")


def owner_token(directory: Path) -> str:
    """The owner's token."""
    return _kept(directory, "owner-token")


def continuation_secret(directory: Path) -> bytes:
    """The key that seals continuations. Those that another key has sealed count as another server's."""
    return _kept(directory, "continuation-secret").encode()


def _kept(directory: Path, name: str) -> str:
    """A secret of 256 random bits: made at the first start, kept in a file that only the owner can read. Raises
    StateError where the file holds none: an empty secret is one that everybody knows."""
    make_private(directory)
    path = directory / name
    if not path.exists():
        write_private(path, secrets.token_hex(32).encode(), replace=False)
    try:
        secret = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        secret = ""
    if not secret:
        raise StateError(f"{path} is damaged; remove it, and a new one is made")
    return secret


def make_private(directory: Path) -> None:
    """Makes the directory, for the user alone. Raises StateError where that cannot be."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"{directory} cannot be used: {error.strerror}") from error


def open_private(path: Path, flags: int) -> Any:
    return os.fdopen(os.open(path, flags, 0o600), "r+b")


def write_private(path: Path, content: bytes, *, replace: bool = True) -> None:
    """Writes a file of mode 0600 whole or not at all. Without `replace`, a file that came first is left alone."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with open_private(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        if replace:
            os.replace(draft, path)
        else:
            os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
