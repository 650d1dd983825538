"""Blocks that answer nothing, or that cannot be what they say, are dropped or refused and never verified."""

import pytest

from cluster.drafting.wire import put_proposal
from cluster.speculation.proposal import SparseRow, pack, unpack
from tests.drafting.helpers import VOCAB
from tests.verifier_service.drafting.wire import good, misbehaving, side
from verifier_service.drafting.port import Fallback


@pytest.mark.parametrize(
    "change",
    [{"plan_id": 99}, {"epoch": 99}, {"sequence": 99}],
    ids=lambda change: next(iter(change)),
)
async def test_a_block_that_answers_nothing_is_dropped_and_counted(change):
    async with misbehaving(lambda plan, opened: [good(plan, **change), good(plan)]) as address:
        async with side(address) as verifier:
            verifier.open()
            verifier.ask()
            assert (await verifier.reply()).block.tokens == (1, 2)
            assert sum(verifier.remote.dropped.values()) == 1


@pytest.mark.parametrize(
    "change", [{"prefix_hash": b"0" * 16}, {"incarnation": 6}], ids=["prefix", "incarnation"]
)
async def test_a_block_on_another_prefix_or_of_another_life_is_never_verified(change):
    async with misbehaving(lambda plan, opened: [good(plan, **change)]) as address:
        async with side(address) as verifier:
            verifier.open()
            verifier.ask()
            reply = await verifier.reply()
            assert (reply.block, reply.fallback) == (None, Fallback.STALE_BLOCK)
            assert sum(verifier.remote.dropped.values()) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"ids": [1, VOCAB], "max_q": [1.0, 1.0]},
        {"ids": [1] * 5, "max_q": [1.0] * 5},
        {"ids": [1, 2], "max_q": [1.0]},
    ],
    ids=["beyond the vocabulary", "longer than asked", "without a statistic"],
)
async def test_a_malformed_block_is_an_invalid_block(change):
    async with misbehaving(lambda plan, opened: [good(plan, **change)]) as address:
        async with side(address) as verifier:
            verifier.open()
            verifier.ask()
            reply = await verifier.reply()
            assert (reply.block, reply.fallback) == (None, Fallback.INVALID_BLOCK)


def with_proposal(block, rows, entries=4):
    put_proposal(block, pack(rows), entries)
    return block


ROWS = [SparseRow((1, 9), (0.25, 0.5)), SparseRow((2,), (1.0,))]


async def test_a_proposal_arrives_with_its_block():
    async with misbehaving(lambda plan, opened: [with_proposal(good(plan), ROWS)]) as address:
        async with side(address) as verifier:
            verifier.open()
            verifier.ask()
            block = (await verifier.reply()).block
            assert unpack(block, VOCAB) == ROWS


@pytest.mark.parametrize(
    "rows",
    [
        [SparseRow((8, 9), (0.5, 0.5)), ROWS[1]],
        [SparseRow((1, VOCAB), (0.5, 0.5)), ROWS[1]],
        [SparseRow((1, 9), (0.5, float("nan"))), ROWS[1]],
        [SparseRow((1, 1), (0.5, 0.5)), ROWS[1]],
    ],
    ids=["its token has no probability", "beyond the vocabulary", "no number", "an id twice"],
)
async def test_a_proposal_that_cannot_have_given_its_block_is_an_invalid_block(rows):
    async with misbehaving(lambda plan, opened: [with_proposal(good(plan), rows)]) as address:
        async with side(address) as verifier:
            verifier.open()
            verifier.ask()
            assert (await verifier.reply()).fallback is Fallback.INVALID_BLOCK


async def test_a_proposal_that_was_cut_on_its_way_is_an_invalid_block():
    def cut(plan, opened):
        block = with_proposal(good(plan), ROWS)
        block.proposal_probs = block.proposal_probs[:-4]
        return [block]

    async with misbehaving(cut) as address, side(address) as verifier:
        verifier.open()
        verifier.ask()
        assert (await verifier.reply()).fallback is Fallback.INVALID_BLOCK


async def test_a_duplicate_block_is_used_once():
    async with misbehaving(lambda plan, opened: [good(plan), good(plan)]) as address:
        async with side(address) as verifier:
            verifier.open()
            for committed in ((), (1,)):
                verifier.ask(committed=committed)
                assert (await verifier.reply()).plan_id == verifier.plan
            assert verifier.replies.empty()
            assert sum(verifier.remote.dropped.values()) >= 1
