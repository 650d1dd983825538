import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

from verifier_service.drafting.resolver import Address, ServeResolver, StaticResolver


class Router:
    """Chooses among `replicas` in turn; waits while there are none, as Serve's router does."""

    def __init__(self, *replicas):
        self.replicas = list(replicas)
        self.changed = asyncio.Event()
        self.asked = self.reserved = self.waiting = 0
        self.error = None

    @asynccontextmanager
    async def choose_replica(self):
        if self.error is not None:
            raise self.error
        self.waiting += 1
        try:
            while not self.replicas:
                self.changed.clear()
                await self.changed.wait()
        finally:
            self.waiting -= 1
        name = self.replicas[self.asked % len(self.replicas)]
        self.asked += 1
        self.reserved += 1
        try:
            yield SimpleNamespace(replica_metadata={"address": f"{name}:1", "replica": name} if name else {})
        finally:
            self.reserved -= 1


async def test_static_addresses():
    assert await StaticResolver("host:1").resolve() == Address("host:1", "host:1")
    address = None
    resolver = StaticResolver(lambda: address)
    assert await resolver.resolve() is None
    address = "host:2"
    assert await resolver.resolve(avoid="host:2") == Address("host:2", "host:2")
    await resolver.aclose()


async def test_a_replica_with_no_slot_left_reserved():
    router = Router("a")
    assert await ServeResolver(router).resolve() == Address("a:1", "a")
    assert router.reserved == 0


async def test_another_replica_is_preferred_to_the_one_to_avoid():
    assert (await ServeResolver(Router("a", "b")).resolve(avoid="a")).replica == "b"
    assert (await ServeResolver(Router("a")).resolve(avoid="a")).replica == "a"


async def test_no_replica_is_an_answer_in_time_and_one_question_waits_at_most():
    router = Router()
    resolver = ServeResolver(router, timeout_s=0.05)
    async with asyncio.timeout(1):
        assert [await resolver.resolve() for _ in range(3)] == [None] * 3
    assert router.waiting == 1
    router.replicas.append("late")
    router.changed.set()
    assert await resolver.resolve() == Address("late:1", "late")
    assert (router.waiting, router.reserved) == (0, 0)


async def test_closing_gives_the_question_up():
    router = Router()
    resolver = ServeResolver(router, timeout_s=0.01)
    await resolver.resolve()
    await resolver.aclose()
    assert router.waiting == 0


async def test_errors_and_replicas_without_an_address_are_no_replica():
    router = Router("")
    resolver = ServeResolver(router)
    assert await resolver.resolve() is None
    router.error = RuntimeError("deployment unavailable")
    assert await resolver.resolve() is None
    router.error, router.replicas = None, ["a"]
    assert (await resolver.resolve()).replica == "a"
