"""Trees over real gRPC: from the real server, and from a drafter that misbehaves."""

import pytest

from cluster.speculation.messages import DraftBlock
from tests.drafting.helpers import VOCAB, ScriptedDrafter, expected
from tests.verifier_service.drafting.wire import good, misbehaving, server, side
from verifier_service.drafting.port import Fallback


class Branching(ScriptedDrafter):
    """Drafts each token and another one beside it."""

    def _draft(self, job):
        chain = super()._draft(job)
        if job.width == 1:
            return chain
        tokens = [token for first in chain.tokens for token in (first, VOCAB - 1 - first)]
        parents = [
            at for above in range(-2, 2 * job.length - 2, 2) for at in (max(above, -1), max(above, -1))
        ]
        return DraftBlock(tuple(tokens), (0.5,) * len(tokens), tuple(parents))


async def test_a_tree_arrives_as_it_was_drafted_where_one_was_asked_for():
    async with server(Branching()) as running, side(running.address) as verifier:
        verifier.open()
        for width in (1, 2, 1):
            verifier.ask(width=width)
            block = (await verifier.reply()).block
            right = expected([1, 2, 3], 4)
            if width == 1:
                assert (block.tokens, block.parents) == (right, None)
            else:
                assert block.parents == (-1, -1, 0, 0, 2, 2, 4, 4)
                assert block.tokens[::2] == right
                assert block.after(right[:2]).parents == (-1, -1, 0, 0)
        assert not verifier.remote.dropped


async def test_a_tree_beyond_what_the_wire_takes_is_a_fault():
    async with server(Branching()) as running, side(running.address) as verifier:
        verifier.open()
        verifier.ask(length=100, width=3)
        reply = await verifier.reply()
        assert (reply.block, reply.fallback) == (None, Fallback.DRAFTER_FAULT)
        assert "at most 256 tokens, 300 were asked for" in reply.detail


@pytest.mark.parametrize(
    ("parents", "words"),
    [
        ([0, 3], "does not come before it"),
        ([0, 2**32 - 1], "does not come before it"),
        ([1, 0], "does not come before it"),
        ([0], "1 parents for 2 tokens"),
        ([0, 0, 0], "3 parents for 2 tokens"),
    ],
)
async def test_parents_that_make_no_tree_are_an_invalid_block(parents, words):
    async with misbehaving(lambda plan, opened: [good(plan, parents=parents)]) as address:
        async with side(address) as verifier:
            verifier.open()
            verifier.ask(width=2)
            reply = await verifier.reply()
            assert (reply.block, reply.fallback) == (None, Fallback.INVALID_BLOCK)
            assert words in reply.detail


async def test_a_tree_where_a_chain_was_asked_for_is_an_invalid_block():
    async with misbehaving(lambda plan, opened: [good(plan, parents=[0, 0])]) as address:
        async with side(address) as verifier:
            verifier.open()
            verifier.ask()
            reply = await verifier.reply()
            assert (reply.fallback, reply.detail) == (
                Fallback.INVALID_BLOCK,
                "a tree where a chain was asked for",
            )
