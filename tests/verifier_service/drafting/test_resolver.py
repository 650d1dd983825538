import asyncio

from ray.serve.exceptions import DeploymentUnavailableError

from verifier_service.drafting.resolver import Address, StaticResolver
from verifier_service.drafting.serve_resolver import ServeResolver


class Handle:
    """Answers for every replica of `replicas`, an error among them included; never while it is None."""

    def __init__(self, *replicas):
        self.replicas = list(replicas)

    def broadcast(self, method_name):
        assert method_name == "whereabouts"
        return self

    async def results_async(self, *, timeout_s, return_exceptions):
        assert return_exceptions
        if not self.replicas:
            raise DeploymentUnavailableError("drafters")
        if None in self.replicas:
            await asyncio.sleep(timeout_s)
            raise TimeoutError
        return self.replicas


def told(name, sessions=0):
    return {"address": f"{name}:1", "replica": name, "sessions": sessions}


async def test_static_addresses():
    address = None
    resolver = StaticResolver("host:1", lambda: address)
    assert await resolver.replicas() == [Address("host:1", "host:1")]
    address = "host:2"
    assert [each.replica for each in await resolver.replicas()] == ["host:1", "host:2"]


async def test_every_replica_is_found_and_none_that_died():
    resolver = ServeResolver(Handle(told("a", 3), RuntimeError("died"), told("b")))
    assert await resolver.replicas() == [Address("a:1", "a", 3), Address("b:1", "b", 0)]


async def test_no_replica_is_told_from_not_knowing():
    assert await ServeResolver(Handle()).replicas() == []
    async with asyncio.timeout(1):
        assert await ServeResolver(Handle(told("a"), None), timeout_s=0.05).replicas() is None
    assert await ServeResolver(object()).replicas() is None
