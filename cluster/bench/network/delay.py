"""A TCP relay in a process of its own that makes a network longer than it is."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
from multiprocessing.connection import Connection

_CHUNK = 65536
_START_S = 30.0


class DelayingProxy:
    """Relays connections to one address; every byte comes half a round trip later, in order, however many are
    under way. `round_trip`: seconds, 0 at first."""

    def __init__(self, target: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._channel, theirs = context.Pipe()
        self._process = context.Process(target=_relay, args=(theirs, target), daemon=True)
        self._process.start()
        theirs.close()
        if not self._channel.poll(_START_S):
            raise RuntimeError("the proxy's process did not start")
        self.address: str = self._channel.recv()

    def delay(self, round_trip: float) -> None:
        """From now on, of what is sent."""
        self._channel.send(round_trip)
        # Until it is so.
        self._channel.recv()

    def close(self) -> None:
        self._process.kill()
        self._process.join()


class _Relay:
    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self.round_trip = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(due - loop.time())
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            writer.close()

        delivering = loop.create_task(deliver())
        with contextlib.suppress(ConnectionError):
            data = b"-"
            while data:
                data = await reader.read(_CHUNK)
                under_way.put_nowait((loop.time() + self.round_trip / 2, data))
        with contextlib.suppress(ConnectionError):
            await delivering


def _relay(channel: Connection, target: str) -> None:
    """The proxy's process: serves until it is killed."""
    # A network takes no turns with what computes at its ends.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))

    async def serve() -> None:
        relay = _Relay(target)
        server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]

        def change() -> None:
            try:
                relay.round_trip = channel.recv()
            except EOFError:
                asyncio.get_running_loop().remove_reader(channel.fileno())
                return
            channel.send(None)

        asyncio.get_running_loop().add_reader(channel.fileno(), change)
        channel.send(f"{host}:{port}")
        await server.serve_forever()

    asyncio.run(serve())
