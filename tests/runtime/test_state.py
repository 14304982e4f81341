"""The token store: nothing readable at rest, seen by all processes, whole or not at all."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from server.state import StateError, TokenStore, continuation_secret, default_state_dir, owner_token


def test_a_token_is_found_with_its_policy_and_not_stored(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "state")
    token = store.create("shell", consent="shell", select="ask")
    assert len(token) >= 43
    found = store.find(token)
    assert found is not None and (found.name, found.consent, found.select) == ("shell", "shell", "ask")
    assert store.find(token + "x") is None and store.find("") is None and store.find("\ud800") is None
    assert token not in (tmp_path / "state" / "tokens.json").read_text()


def test_the_default_asks(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    store.create("shell")
    assert [(each.consent, each.select) for each in store.list()] == [("ask", "default")]


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    state = tmp_path / "a" / "state"
    TokenStore(state).create("shell")
    owner_token(state)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert {path.name for path in state.iterdir()} == {"tokens.json", "tokens.lock", "owner-token"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in state.iterdir())


def test_another_processes_changes_are_seen(tmp_path: Path) -> None:
    gone: list[str] = []
    running, outside = TokenStore(tmp_path, on_revoked=gone.append), TokenStore(tmp_path)
    token = outside.create("shell")
    assert running.find(token) is not None
    outside.revoke("shell")
    running.refresh()
    assert gone == ["shell"] and running.find(token) is None


def test_a_name_used_again_is_another_token(tmp_path: Path) -> None:
    gone: list[str] = []
    running, outside = TokenStore(tmp_path, on_revoked=gone.append), TokenStore(tmp_path)
    old = outside.create("shell")
    assert running.find(old) is not None
    outside.revoke("shell")
    new = outside.create("shell")
    assert running.find(new) is not None and gone == ["shell"]
    assert running.find(old) is None


def test_names_are_checked(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    store.create("a.b-C_1")
    for name in ("", "a b", "x" * 65, "ä", "a/b"):
        with pytest.raises(StateError):
            store.create(name)
    with pytest.raises(StateError, match="exists"):
        store.create("a.b-C_1")
    with pytest.raises(StateError, match="no token"):
        store.revoke("other")
    with pytest.raises(StateError):
        store.create("x", consent="never")  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["{", '[{"name":"x"}]', '[{"name":"x","consent":"never","select":"ask"}]', "7"])
def test_a_damaged_file_lets_nobody_in(tmp_path: Path, damage: str) -> None:
    store = TokenStore(tmp_path)
    token = store.create("shell")
    (tmp_path / "tokens.json").write_text(damage)
    with pytest.raises(StateError, match="damaged"):
        store.find(token)
    assert store.find(token) is None
    with pytest.raises(StateError, match="damaged"):
        TokenStore(tmp_path)


def test_the_owners_token_is_made_once(tmp_path: Path) -> None:
    assert owner_token(tmp_path / "s") == owner_token(tmp_path / "s")
    assert owner_token(tmp_path / "s") != owner_token(tmp_path / "t")


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe"])
def test_an_empty_secret_is_none(tmp_path: Path, content: bytes) -> None:
    for name, secret in (("owner-token", owner_token), ("continuation-secret", continuation_secret)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(StateError, match=f"{name} is damaged"):
            secret(tmp_path)


def test_so_is_the_secret_of_continuations(tmp_path: Path) -> None:
    secret = continuation_secret(tmp_path / "s")
    assert secret == continuation_secret(tmp_path / "s") != continuation_secret(tmp_path / "t")
    assert secret != owner_token(tmp_path / "s").encode() and len(bytes.fromhex(secret.decode())) == 32
    assert stat.S_IMODE((tmp_path / "s" / "continuation-secret").stat().st_mode) == 0o600


def test_a_state_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError):
        TokenStore(tmp_path / "file" / "state")


def test_the_default_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / "nap-llm"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_state_dir() == Path.home() / ".local" / "state" / "nap-llm"


def test_the_file_is_json_for_people_too(tmp_path: Path) -> None:
    TokenStore(tmp_path).create("shell")
    (entry,) = json.loads((tmp_path / "tokens.json").read_text())
    assert set(entry) == {"name", "consent", "select", "created", "digest"}
