"""Notifications to a service manager (sd_notify(3)): ready, alive, about to end. Without one nothing is sent."""

from __future__ import annotations

import asyncio
import os
import socket


def notify(state: str) -> None:
    """Sends `state` ("READY=1") to the socket that systemd has named, if it has."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        try:
            sending.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
        except OSError:
            return  # a manager that has gone is no fault of ours


def watchdog_period() -> float | None:
    """Seconds within which the manager wants to hear of this process again and again; None: it does not."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isdigit() and int(microseconds) else None


async def keep_alive() -> None:
    """Tells the manager that the event loop turns, twice as often as it asks to be told, if it asks at all."""
    if (period := watchdog_period()) is not None:
        while True:
            notify("WATCHDOG=1")
            await asyncio.sleep(period / 2)
