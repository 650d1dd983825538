"""What the drafting client makes of silence, of slowness, of a refusal and of its own end."""

import asyncio
import contextlib
import logging

from cluster.drafting.wire import KEEPALIVE_INTERVAL_MS, KEEPALIVE_TIMEOUT_MS
from tests.drafting.helpers import ScriptedDrafter, expected, until
from tests.verifier_service.drafting.wire import (
    HELLO,
    Side,
    server,
    side,
)
from verifier_service.drafting.port import DraftTicket, Fallback
from verifier_service.drafting.remote import HelloInfo, RemoteDrafting
from verifier_service.drafting.resolver import StaticResolver


async def test_a_slow_drafter_holds_up_nobody_and_a_newer_ticket_replaces_the_older():
    drafter = ScriptedDrafter()
    drafter.gate.clear()
    async with server(drafter) as running, side(running.address) as verifier:
        try:
            verifier.open()
            verifier.ask()
            await until(drafter.entered.is_set)
            # The engine went on without the block.
            verifier.ask(committed=(7,))
            await asyncio.sleep(0.1)
            assert verifier.replies.empty()
        finally:
            drafter.gate.set()
        reply = await verifier.reply()
        assert (reply.plan_id, reply.block.tokens) == (2, expected([1, 2, 3, 7], 4))
        assert verifier.replies.empty()
        assert verifier.remote.dropped == {"plan": 1}


async def test_a_closed_sequence_is_closed_at_the_drafter():
    drafter = ScriptedDrafter()
    async with server(drafter) as running, side(running.address) as verifier:
        verifier.open()
        verifier.ask()
        await verifier.reply()
        verifier.remote.close(1, "stop")
        verifier.remote.close(2, "never opened")
        await until(lambda: not drafter.texts)
        # The number may be used again.
        verifier.open(1, prompt=(9,))
        verifier.ask()
        assert (await verifier.reply()).block.tokens == expected([9], 4)


async def test_a_refusal_is_logged_once_and_retried(caplog):
    hello = HelloInfo("new", HELLO.vocab_size, "t", "1", "v")
    with caplog.at_level(logging.INFO, logger="verifier_service.drafting.link"):
        async with server(ScriptedDrafter(), "old") as old:
            address = old.address
            verifier = Side(lambda: address, hello)
            try:
                await verifier.until("refused")
                await asyncio.sleep(0.5)
                assert verifier.remote.state.startswith("refused: tokenizer-mismatch")
                async with server(ScriptedDrafter(), "new") as new:
                    address = new.address
                    await verifier.until("connected")
            finally:
                await verifier.remote.aclose()
    assert [record.levelname for record in caplog.records].count("ERROR") == 1


class Relay:
    """A TCP relay that can fall silent without closing anything, as a frozen peer or a cut cable does."""

    def __init__(self, address):
        self._host, _, self._port = address.rpartition(":")
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _relay(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        try:
            # asyncio.streams would log the cancellation of the handler it started.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            writer.close()
            far_writer.close()

    async def _pump(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await self.flowing.wait()
                writer.write(data)
                await writer.drain()
            writer.close()


async def test_a_silent_peer_is_noticed():
    async with server(ScriptedDrafter()) as running:
        relay = Relay(running.address)
        async with relay as address, side(address) as verifier:
            verifier.open()
            verifier.ask()
            assert (await verifier.reply()).block is not None
            # Quiet but alive for longer than keepalive waits: nothing happens.
            await asyncio.sleep((KEEPALIVE_INTERVAL_MS + KEEPALIVE_TIMEOUT_MS) / 1000 + 0.5)
            assert verifier.remote.state == "connected"
            relay.flowing.clear()
            verifier.ask(committed=(4,))
            began = asyncio.get_running_loop().time()
            assert (await verifier.reply()).fallback is Fallback.STREAM_RESET
            assert asyncio.get_running_loop().time() - began < 6
            relay.flowing.set()
            await verifier.until("connected")
            verifier.ask(committed=(5,))
            assert (await verifier.reply()).block.tokens == expected([1, 2, 3, 4, 5], 4)


async def test_closing_resets_what_is_open_and_leaves_no_task():
    before = asyncio.all_tasks()
    drafter = ScriptedDrafter()
    drafter.gate.clear()
    async with server(drafter) as running:
        verifier = Side(running.address)
        await verifier.until("connected")
        verifier.open()
        verifier.ask()
        await until(drafter.entered.is_set)
        await verifier.remote.aclose()
        drafter.gate.set()
        assert (await verifier.reply()).fallback is Fallback.STREAM_RESET
        verifier.ask()
        assert (await verifier.reply()).fallback is Fallback.NO_DRAFTER
        assert verifier.remote.state == "closed"
    await until(lambda: asyncio.all_tasks() == before)


async def test_closing_while_nothing_can_be_reached():
    for address in ("127.0.0.1:9", lambda: None):
        verifier = Side(address)
        verifier.open()
        verifier.ask()
        assert (await verifier.reply()).fallback is Fallback.NO_DRAFTER
        await asyncio.sleep(0.2)
        assert verifier.remote.state == "connecting"
        await verifier.remote.aclose()


def test_tickets_outlive_the_loop():
    loop = asyncio.new_event_loop()
    remote, replies = RemoteDrafting(StaticResolver("127.0.0.1:9"), HELLO, loop), []
    remote.connect(replies.append)
    loop.run_until_complete(remote.aclose())
    loop.close()
    remote.request(DraftTicket(1, 1, (), 3, b"", 4, ""))
    assert [reply.fallback for reply in replies] == [Fallback.NO_DRAFTER]
