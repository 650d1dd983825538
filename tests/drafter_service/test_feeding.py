"""Fused features on their way from a verifier to a drafter: real gRPC, a drafter that tells what it read."""

import asyncio
import re

import pytest
import torch

from cluster.drafting.drafter import DraftJob
from cluster.drafting.features import FeaturesInfo
from cluster.drafting.wire import MAX_FEATURES_BYTES
from cluster.speculation.messages import DraftBlock
from tests.drafting.helpers import VOCAB, ScriptedDrafter
from tests.verifier_service.drafting.wire import HELLO, server, side
from verifier_service.drafting.port import Fallback
from verifier_service.drafting.remote import HelloInfo

INFO = FeaturesInfo((1, 2), "digest", "float32", 4)


class Reading(ScriptedDrafter):
    """Drafts the sum of all features that it has read."""

    features = INFO

    def __init__(self):
        super().__init__()
        self.read = {}

    def open(self, spec):
        super().open(spec)
        self.read[spec.sequence] = torch.zeros(0, 4)

    def _draft(self, job: DraftJob):
        text = self.texts[job.sequence]
        text.extend(job.committed)
        if text[-1] in self.poison:
            self.poison.clear()
            raise RuntimeError("poisoned")
        self.read[job.sequence] = torch.cat([self.read[job.sequence], job.fused])
        assert len(self.read[job.sequence]) == len(text) - 1
        total = int(self.read[job.sequence].sum())
        return DraftBlock(tuple((total + k) % VOCAB for k in range(job.length)), (0.5,) * job.length)


def hello(**changes):
    fields = {"layers": INFO.layers, "digest": INFO.digest, "dtype": INFO.dtype, "width": INFO.width}
    names = ("tokenizer_hash", "vocab_size", "target_model", "target_revision", "verifier_replica")
    return HelloInfo(*(getattr(HELLO, name) for name in names), FeaturesInfo(**fields | changes))


def rows(first, count):
    """Each row has its position in all places."""
    return torch.arange(first, first + count, dtype=torch.float32)[:, None].repeat(1, 4)


def total(count):
    """What is drafted first when so many rows have been read."""
    return 4 * sum(range(count)) % VOCAB


async def test_a_plan_is_answered_from_the_features_of_its_whole_prefix():
    async with server(Reading()) as running, side(running.address, hello()) as verifier:
        verifier.open(prompt=(1, 2, 3))
        verifier.remote.feed(1, rows(0, 2))
        verifier.ask()
        assert (await verifier.reply()).block.tokens[0] == total(2)
        verifier.remote.feed(1, rows(2, 3))
        verifier.ask(committed=(7, 8, 9))
        assert (await verifier.reply()).block.tokens[0] == total(5)


async def test_a_plan_waits_for_features_and_for_nothing_else():
    drafter = Reading()
    async with server(drafter) as running, side(running.address, hello()) as verifier:
        verifier.open(1, (1, 2, 3))
        verifier.open(2, (1, 2))
        verifier.ask(1)
        verifier.remote.feed(1, rows(0, 1))
        verifier.remote.feed(2, rows(0, 1))
        verifier.ask(2)
        # The other sequence's plan comes later and is answered at once.
        assert (await verifier.reply()).sequence == 2
        verifier.remote.feed(1, rows(1, 1))
        reply = await verifier.reply()
        assert (reply.sequence, reply.block.tokens[0]) == (1, total(2))
        assert [len(calls) for calls in drafter.calls] == [1, 1]


async def test_a_long_prompt_comes_in_pieces(monkeypatch):
    count = 3 * MAX_FEATURES_BYTES // 16 + 5
    async with server(Reading()) as running, side(running.address, hello()) as verifier:
        verifier.open(prompt=[1] * (count + 1))
        verifier.remote.feed(1, rows(0, count) % 10)
        verifier.ask()
        assert (await verifier.reply()).block.tokens[0] == int((rows(0, count) % 10).sum()) % VOCAB
        assert verifier.remote.traffic["fed"] >= 16 * count


async def test_another_drafter_gets_all_of_them_again():
    drafter = Reading()
    async with server(drafter) as running:
        ports = (int(running.address.split(":")[1]),) * 2
        async with side(running.address, hello()) as verifier:
            verifier.open(prompt=(1, 2, 3))
            verifier.remote.feed(1, rows(0, 2))
            verifier.ask()
            await verifier.reply()
            await running.stop()
            await verifier.until("connecting")
            verifier.remote.feed(1, rows(2, 1))
            async with server(Reading(), ports=ports):
                await verifier.until("connected")
                verifier.ask(committed=(9,))
                assert (await verifier.reply()).block.tokens[0] == total(3)


async def test_after_an_error_the_drafter_reads_everything_again():
    drafter = Reading()
    drafter.poison = {9}
    async with server(drafter) as running, side(running.address, hello()) as verifier:
        verifier.open(prompt=(1, 2, 3))
        verifier.remote.feed(1, rows(0, 2))
        verifier.ask()
        await verifier.reply()
        verifier.remote.feed(1, rows(2, 1))
        verifier.ask(committed=(9,))
        assert (await verifier.reply()).fallback is Fallback.DRAFTER_FAULT
        verifier.remote.feed(1, rows(3, 1))
        verifier.ask(committed=(4,))
        assert (await verifier.reply()).block.tokens[0] == total(4)


async def test_nothing_is_drafted_ahead_of_features():
    drafter = Reading()
    async with server(drafter) as running, side(running.address, hello()) as verifier:
        verifier.open(prompt=(1, 2, 3))
        verifier.remote.feed(1, rows(0, 2))
        verifier.ask(ahead=4)
        await verifier.reply()
        await asyncio.sleep(0.1)
        assert len(drafter.calls) == 1


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        (None, "the verifier makes none"),
        ({"layers": (2, 3)}, r"reads layers \[2, 3\], the drafter \[1, 2\]"),
        ({"digest": "other"}, "fuses by other"),
        ({"dtype": "bfloat16"}, "sends features in bfloat16"),
    ],
)
async def test_features_that_the_drafter_does_not_read_are_refused(features, reason):
    greeting = HELLO if features is None else hello(**features)
    async with server(Reading()) as running, side(running.address, greeting, "refused") as verifier:
        assert re.search(reason, verifier.remote.state)
        verifier.open()
        verifier.ask()
        assert (await verifier.reply()).fallback is Fallback.NO_DRAFTER


async def test_a_drafter_that_reads_none_is_sent_none():
    async with server(ScriptedDrafter()) as running, side(running.address, hello()) as verifier:
        verifier.open(prompt=(1, 2, 3))
        verifier.remote.feed(1, rows(0, 2))
        verifier.ask()
        assert (await verifier.reply()).block is not None
        assert not verifier.remote.traffic["fed"]
