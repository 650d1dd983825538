"""Nothing of a request outlives it: 2,000 short ones over the wire, one in five cancelled."""

import asyncio
import gc
import os
import random
import threading

import psutil

from cluster.drafting import NgramDrafter
from cluster.speculation.request import Failed, Finished, Refused
from tests.drafting.helpers import until
from tests.verifier_service.drafting.wire import server
from verifier_service.drafting.remote import HelloInfo, RemoteDrafting
from verifier_service.drafting.resolver import StaticResolver
from verifier_service.limits import Load

REQUESTS, WARM_UP = 2000, 400
AT_ONCE = 24


class Watched(NgramDrafter):
    @property
    def open_sessions(self):
        return len(self._texts)


async def drive(engine, request_for, count, chance):
    """Answers `count` requests, a few at a time; how many were finished and how many were cancelled."""
    loop, done = asyncio.get_running_loop(), {"finished": 0, "cancelled": 0}
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number):
        async with places:
            over = loop.create_future()

            def take(event):
                if isinstance(event, Finished | Failed | Refused):
                    loop.call_soon_threadsafe(lambda: over.done() or over.set_result(event))

            text = "one two " * chance.randint(1, 5)
            engine.submit(
                request_for(text, 1.0, max_tokens=chance.randint(1, 12), seed=number, request_id=str(number)),
                take,
            )
            if number % 5 == 0:
                await asyncio.sleep(chance.random() * 0.01)
                engine.cancel(str(number))
                done["cancelled"] += 1
                return
            assert isinstance(await over, Finished)
            done["finished"] += 1

    await asyncio.gather(*(one(number) for number in range(count)))
    return done


def holdings():
    gc.collect()
    return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")), threading.active_count()


async def test_nothing_outlives_its_request(engine_with, request_for, loaded):
    drafter, chance, process = Watched(), random.Random(3), psutil.Process()
    loop = asyncio.get_running_loop()
    async with server(drafter) as running:
        remote = RemoteDrafting(StaticResolver(running.address), HelloInfo("hash", 1000, "t", "", "v"), loop)
        engine = engine_with(remote)
        thread = threading.Thread(target=engine.run)
        thread.start()
        try:
            await until(lambda: remote.state == "connected")

            async def at_rest():
                nothing = Load(active=0, queued=0, kv_tokens=0)
                await until(lambda: engine.load() == nothing and not drafter.open_sessions)
                assert not remote._sessions._sequences
                return holdings()

            await drive(engine, request_for, WARM_UP, chance)
            before, resident = await at_rest(), process.memory_info().rss
            done = await drive(engine, request_for, REQUESTS, chance)
            assert done == {"finished": 0.8 * REQUESTS, "cancelled": 0.2 * REQUESTS}
            assert await at_rest() == before
            assert process.memory_info().rss < 1.05 * resident
        finally:
            engine.stop()
            await asyncio.to_thread(thread.join)
            await remote.aclose()
