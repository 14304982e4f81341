"""News that something an onlooker sees has changed, for any number of onlookers who may be slow."""

from __future__ import annotations

import asyncio


class ChangeFeed:
    """`notify` costs nothing while nobody waits; whoever waits learns that something changed, and looks for himself."""

    def __init__(self) -> None:
        self.version = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        self.version += 1
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def since(self, version: int) -> None:
        """Returns once there has been a change after that version."""
        if self.version != version:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)
