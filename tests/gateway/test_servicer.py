"""A disconnect reaches whatever produces a stream, wherever the stream is at that moment."""

import asyncio

import pytest

from cluster.gateway.servicer import cancellable, is_loopback


class Context:
    """Writes at once, or never."""

    def __init__(self, stuck=False):
        self.written, self._stuck = [], stuck
        self.wrote = asyncio.Event()

    async def write(self, message):
        self.written.append(message)
        self.wrote.set()
        if self._stuck:
            await asyncio.Event().wait()


def forwarding(outcome, messages, hang=False):
    async def forward(request, context):
        try:
            for message in messages:
                yield message
            if hang:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            outcome.append("cancelled")
            # As the proxy does: it still has something to say to the context.
            await asyncio.sleep(0)
            outcome.append("over")
            return
        outcome.append("complete")

    return forward


async def test_messages_pass_in_order_and_empty_ones_are_left_out():
    outcome, context = [], Context()
    await cancellable(forwarding(outcome, [b"a", b"", b"b"]))(None, context)
    assert context.written == [b"a", b"b"]
    assert outcome == ["complete"]


@pytest.mark.parametrize("stuck", [False, True], ids=["while waiting for more", "while writing"])
async def test_a_disconnect_cancels_and_waits(stuck):
    outcome, context = [], Context(stuck)
    call = asyncio.create_task(cancellable(forwarding(outcome, [b"a"], hang=True))(None, context))
    await context.wrote.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    # Over before the call is: afterwards its context would be gone.
    assert outcome == ["cancelled", "over"]


async def test_a_failure_is_passed_on():
    async def forward(request, context):
        yield b"a"
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        await cancellable(forward)(None, Context())


@pytest.mark.parametrize(
    ("peer", "here"),
    [
        ("ipv4:127.0.0.1:40000", True),
        ("ipv4:127.9.9.9:40000", True),
        ("ipv6:%5B::1%5D:40000", True),
        ("ipv6:[::1]:40000", True),
        ("ipv6:%5B::ffff:127.0.0.1%5D:40000", True),
        ("ipv6:%5B::ffff:192.0.2.2%5D:40000", False),
        ("ipv4:192.0.2.2:40000", False),
        ("ipv6:%5Bfd00::2%5D:40000", False),
        ("ipv6:%5Bfe80::1%25eth0%5D:40000", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_who_is_on_this_machine(peer, here):
    assert is_loopback(peer) is here
