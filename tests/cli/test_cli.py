"""The commands that need no running server."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from server.cli.main import main
from server.config import Config
from server.state import TokenStore
from server.weights import cached
from tests.hub_server import REPO, playing


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def configuration(directory: Path, model: Path) -> Path:
    file = directory / "models.toml"
    file.write_text(f'[models.tiny]\nname = "Tiny"\nmodel = "tiny-1"\nsource.path = "{model}"\nslots = 2\n')
    return file


def test_a_token_is_printed_alone_and_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "token", "create", "shell", "--consent", "always", "--state", str(tmp_path))
    assert (status, err) == (0, "")
    assert re.fullmatch(r"\S{32,}\n", out)
    policy = TokenStore(tmp_path).find(out.strip())
    assert policy is not None
    assert (policy.name, policy.consent, policy.select) == ("shell", "always", "default")


def test_tokens_are_listed_without_themselves_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ("--state", str(tmp_path))
    _, token, _ = run(capsys, "token", "create", "shell", *state)
    run(capsys, "token", "create", "other", "--consent", "shell", "--select", "ask", *state)
    _, out, _ = run(capsys, "token", "list", *state)
    assert [line.split()[:3] for line in out.splitlines()] == [
        ["shell", "consent=ask", "select=default"],
        ["other", "consent=shell", "select=ask"],
    ]
    assert token.strip() not in out
    assert run(capsys, "token", "revoke", "shell", *state)[0] == 0
    assert TokenStore(tmp_path).find(token.strip()) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("token", "revoke", "nobody"), "no token is named nobody"),
        (("token", "create", "bad name"), "name is"),
    ],
)
def test_what_a_token_command_cannot_do_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    status, out, err = run(capsys, *arguments, "--state", str(tmp_path))
    assert (status, out) == (1, "")
    assert words in err


@pytest.mark.parametrize(
    "arguments",
    [(), ("token",), ("token", "create", "x", "--consent", "never"), ("sing",), ("serve", "--port", "70000")],
)
def test_a_wrong_command_line_shows_how(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert "usage: nap-llm" in err


@pytest.mark.parametrize("port", ["70000", "-1", "http"])
def test_a_port_is_a_number(capsys: pytest.CaptureFixture[str], port: str) -> None:
    assert "--port: must be a number from 0 to 65535" in run(capsys, "serve", f"--port={port}")[2]


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8033", "http://", "http://[", "http://h:99999", "http://h:8 0", "ftp://h"]
)
def test_an_address_is_one_of_the_web(capsys: pytest.CaptureFixture[str], url: str) -> None:
    for command in ("chat", "console"):
        status, _, err = run(capsys, command, "--url", url)
        assert status == 2
        assert "--url: must be an address such as http://127.0.0.1:8033" in err


@pytest.mark.parametrize("token", ["\u00e9", "a b", "a\n"])
def test_what_cannot_be_a_token_is_not_sent(capsys: pytest.CaptureFixture[str], token: str) -> None:
    status, _, err = run(capsys, "chat", "hello", "--token", token)
    assert status == 2
    assert "--token: has characters that no token has" in err


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [signal.SIGHUP, signal.SIGTERM])
def test_a_chat_that_is_ended_leaves_no_token(tmp_path: Path, signalled: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "server.cli.main", "chat", "hello", "--url", url, "--state", str(tmp_path)]
        silent.settimeout(20)
        with subprocess.Popen(command, env={**os.environ, "NAP_LLM_TOKEN": ""}) as chatting, silent.accept()[0]:
            # It asks, so it has its token.
            assert len(TokenStore(tmp_path).list()) == 1
            chatting.send_signal(signalled)
            assert chatting.wait(20) == 128 + signalled
    assert TokenStore(tmp_path).list() == ()


@pytest.mark.parametrize("command", [("token", "list"), ("token", "create", "shell"), ("console",)])
def test_files_that_cannot_be_used_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    for name in ("tokens.json", "owner-token"):
        (tmp_path / name).mkdir()
    status, out, err = run(capsys, *command, "--state", str(tmp_path))
    assert (status, out) == (1, "")
    assert re.fullmatch(rf"nap-llm: {tmp_path}/(tokens\.json|owner-token): Is a directory\n", err)


@pytest.mark.parametrize("command", [("completion", "bash"), ("token", "list")])
def test_a_reader_that_has_had_enough_is_no_fault(tmp_path: Path, command: tuple[str, ...]) -> None:
    TokenStore(tmp_path).create("shell")
    reading, writing = os.pipe()
    os.close(reading)
    state = ["--state", str(tmp_path)] if command[0] == "token" else []
    ended = subprocess.run(
        [sys.executable, "-m", "server.cli.main", *command, *state], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


def test_a_file_that_nothing_fetches_is_not_called_fetchable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, "show", str(tmp_path / "none.gguf"))
    assert status == 1
    assert "no model file at" in err and "pull" not in err


def test_models_tells_what_the_file_says(tmp_path: Path, smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "models", "--models", str(configuration(tmp_path, smollm2)))
    assert status == 0
    assert "Tiny (tiny-1)" in out
    assert "98.4 MB" in out
    assert "llama, vocabulary 49152" in out
    assert "8192 of 8192 tokens, 2 slots" in out


def test_models_tells_what_is_not_here_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "models", "--models", str(configuration(tmp_path, tmp_path / "none.gguf")))
    assert status == 0
    assert "not here yet" in out


def test_models_goes_on_behind_a_damaged_file(
    tmp_path: Path, smollm2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = configuration(tmp_path, smollm2)
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    file.write_text(f'[models.bad]\nmodel = "bad-1"\nsource.path = "bad.gguf"\n{file.read_text()}')
    status, out, _ = run(capsys, "models", "--models", str(file))
    assert status == 0
    assert "bad.gguf: the file is no GGUF" in out and "llama, vocabulary 49152" in out


def test_serve_says_which_key_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[models.tiny]\nmodel = "x"\nsource.path = "x"\nslot = 2\n')
    status, _, err = run(capsys, "serve", "--models", str(file), "--state", str(tmp_path))
    assert status == 1
    assert "[models.tiny] slot: unknown key" in err


def test_serve_says_that_a_port_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = configuration(tmp_path, tmp_path / "none.gguf")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, _, err = run(capsys, "serve", "--models", str(file), "--state", str(tmp_path), "--port", port)
    assert status == 1
    assert f"port {port} of 127.0.0.1 is in use" in err


def test_serve_refuses_an_address_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = configuration(tmp_path, tmp_path / "none.gguf")
    status, _, err = run(
        capsys, "serve", "--models", str(file), "--state", str(tmp_path), "--host", "no.such.host.invalid"
    )
    assert status == 1
    assert "no.such.host.invalid" in err


def test_serve_says_that_a_file_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = configuration(tmp_path, tmp_path / "none.gguf")
    status, _, err = run(capsys, "serve", "--models", str(file), "--state", str(tmp_path), "--port", "0")
    assert status == 1
    assert "none.gguf" in err


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_serve_fetches_all_that_a_connection_is_loaded_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log_format: str
) -> None:
    """Before it answers: a first request should not wait for a download."""
    names = ("model", "mmproj", "draft")
    file = tmp_path / "models.toml"
    file.write_text(
        '[models.whole]\nmodel = "whole"\n'
        + "".join(
            f'[models.whole.{"source" if name == "model" else name}]\nhuggingface = "{REPO}:{name}.gguf"\n'
            for name in names
        )
    )
    here: list[Path | None] = []

    def serve(config: Config, *_: object, **__: object) -> bool:
        (connection,) = config.connections
        here.extend(cached(each) for each in connection.sources)
        return True

    monkeypatch.setattr("server.cli.http_server.serve", serve)
    monkeypatch.setattr("server.cli.serve.start_logging", lambda _: None)
    with playing(tmp_path, monkeypatch) as hub:
        hub.files = {f"{name}.gguf": name.encode() for name in names}
        options = ("--models", str(file), "--port", "0", "--log-format", log_format)
        assert run(capsys, "serve", *options)[0] == 0
    assert [each and each.read_text() for each in here] == list(names)


def test_chat_says_that_nobody_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as freed:
        url = f"http://127.0.0.1:{freed.getsockname()[1]}"
    status, out, err = run(capsys, "chat", "hello", "--url", url, "--state", str(tmp_path))
    assert (status, out) == (1, "")
    assert "is it running?" in err
    assert TokenStore(tmp_path).list() == (), "the token for this talk is gone"


@pytest.mark.parametrize(
    ("tools", "choice", "words"),
    [
        ("not json", None, "no JSON list of tools"),
        ('[{"description": "nameless"}]', None, "no JSON list of tools"),
        ('[{"name": "t"}]', "other", "no tool is named other"),
        (None, "required", "--tool-choice needs --tools"),
    ],
)
def test_chat_refuses_tools_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tools: str | None, choice: str | None, words: str
) -> None:
    arguments = ["chat", "hello", "--token", "t"]
    if tools is not None:
        (tmp_path / "tools.json").write_text(tools)
        arguments += ["--tools", str(tmp_path / "tools.json")]
    if choice is not None:
        arguments += ["--tool-choice", choice]
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert words in err
