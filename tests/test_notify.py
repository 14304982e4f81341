"""What a service manager is told."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.cli.systemd import keep_alive, notify, watchdog_period


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@nap-llm-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(name.replace("@", "\0"))
        receiving.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield receiving


def test_it_hears(manager: socket.socket) -> None:
    notify("READY=1")
    assert manager.recv(100) == b"READY=1"


async def test_it_hears_again_and_again(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    task = asyncio.create_task(keep_alive())
    for _ in range(3):
        assert await asyncio.to_thread(manager.recv, 100) == b"WATCHDOG=1"
    task.cancel()


def test_nobody_need_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (str(tmp_path / "gone"), "vsock:2:1", ""):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify("READY=1")


async def test_a_watchdog_for_another_process_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    assert watchdog_period() == 3
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert watchdog_period() == 3
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_period() is None
    for nonsense in ("0", "soon"):
        monkeypatch.setenv("WATCHDOG_USEC", nonsense)
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        assert watchdog_period() is None
    await keep_alive()
