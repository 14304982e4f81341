"""Program of a worker process, started as `python -m server.engine.worker.main FD`.

FD is its end of the socket pair (see `protocol`). It imports nothing of the web process, exits when the socket closes,
and writes nothing to its standard streams.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from server.engine.protocol import Crashed, Decoder, LoadFailed, LoadModel, Pong, Ready, encode
from server.engine.worker.channel import Channel
from server.engine.worker.loader import LoadedModel, ModelLoader
from server.engine.worker.worker import Worker


@contextmanager
def answer_pings(connection: socket.socket, decoder: Decoder, send: Callable[[object], None]) -> Iterator[None]:
    """Meanwhile a thread answers that this process lives; nothing else is asked before the model is loaded. A socket
    that closes ends the process."""
    over = threading.Event()
    readable = select.poll()
    readable.register(connection, select.POLLIN)

    def answer() -> None:
        while not over.is_set():
            if readable.poll(20):
                data = connection.recv(1 << 16)
                if not data:
                    os._exit(0)
                for _ in decoder.feed(data):
                    send(Pong(0, time.process_time()))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def build_worker(connection: socket.socket, loaded: LoadedModel) -> Worker:
    return Worker(loaded, Channel(connection, loaded))


def main(build: Callable[[socket.socket, LoadedModel], Worker] = build_worker) -> None:
    """Serve one model on the socket whose file descriptor is the last argument."""
    connection = socket.socket(fileno=int(sys.argv[-1]))
    decoder = Decoder()
    frames: list[LoadModel] = []
    while not frames:
        data = connection.recv(1 << 16)
        if not data:
            return
        frames = decoder.feed(data)
    loader = ModelLoader(connection, frames[0])
    with answer_pings(connection, decoder, loader.send):
        loaded = loader.load()
    if isinstance(loaded, LoadFailed):
        connection.sendall(encode(loaded))
        return
    worker = build(connection, loaded)
    connection.sendall(encode(Ready(loaded.info)))
    threading.Thread(target=worker.channel.receive, args=(decoder,), daemon=True).start()
    try:
        worker.run()
    except Exception as error:
        trace = "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__
        connection.sendall(encode(Crashed(trace)))
        raise


if __name__ == "__main__":
    main()
