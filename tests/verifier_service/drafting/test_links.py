"""Sequences spread over drafter replicas, move between them, leave one that ends, and no token changes."""

import asyncio
import contextlib
import itertools
import threading
from dataclasses import replace

import pytest
from opentelemetry.trace import NoOpTracer

from cluster.drafting import NgramDrafter
from cluster.speculation.law import COUPLED, NONE, REJECTION, Claim
from drafter_service.server import DraftingServer
from tests.drafting.helpers import VOCAB, ScriptedDrafter, expected, until
from tests.verifier_service.drafting.wire import HELLO, Side
from tests.verifier_service.helpers import accounted
from verifier_service.batch import Answer, answer_all
from verifier_service.drafting import links
from verifier_service.drafting.port import Fallback
from verifier_service.drafting.remote import HelloInfo, RemoteDrafting
from verifier_service.drafting.resolver import Address


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    monkeypatch.setattr(links, "_LOOK_S", 0.05)


class Listing:
    """Tells of the servers that are in it, as drafter replicas would."""

    def __init__(self, *servers):
        self.servers = list(servers)

    async def replicas(self):
        return [Address(each.address, each.address, each.sessions) for each in self.servers]


@contextlib.asynccontextmanager
async def servers(count, drafter=ScriptedDrafter, tokenizer_hash="hash", vocab=VOCAB):
    made = [DraftingServer(drafter(), tokenizer_hash, vocab, f"d{k}", NoOpTracer()) for k in range(count)]
    for each in made:
        await each.start("127.0.0.1")
    try:
        yield made
    finally:
        for each in made:
            await each.stop()


@contextlib.asynccontextmanager
async def sides(listing, count=1):
    made = [Side(listing, HELLO) for _ in range(count)]
    try:
        for each in made:
            await until(lambda each=each: len(each.remote.spread()) == len(listing.servers))
        yield made
    finally:
        for each in made:
            await each.remote.aclose()


async def drafted(verifier, sequence, committed=()):
    verifier.ask(sequence, committed)
    reply = await verifier.reply()
    assert reply.block.tokens == expected(verifier.texts[sequence], 4)
    return reply.drafter.replica


async def test_a_verifier_spreads_its_sequences_evenly():
    async with servers(3) as made, sides(Listing(*made)) as [verifier]:
        for sequence in range(1, 10):
            verifier.open(sequence)
            await drafted(verifier, sequence)
        assert [each.sessions for each in made] == [3, 3, 3]
        # A sequence stays where it is.
        assert await drafted(verifier, 1, (7,)) == await drafted(verifier, 1, (8,))


async def test_two_verifiers_of_one_sequence_each_draft_on_different_replicas():
    async with servers(2) as made, sides(Listing(*made), 2) as (one, other):
        one.open()
        first = await drafted(one, 1)
        await until(lambda: [link.others for link in other.remote._sessions.links._links if link.others])
        other.open()
        assert await drafted(other, 1) != first


async def test_sequences_move_to_a_replica_that_is_added_and_go_on_as_before():
    async with servers(2) as made:
        listing = Listing(made[0])
        async with sides(listing) as [verifier]:
            for sequence in range(1, 9):
                verifier.open(sequence)
                await drafted(verifier, sequence)
            listing.servers.append(made[1])
            committed = itertools.count(9)
            while abs(made[0].sessions - made[1].sessions) > 2:
                for sequence in range(1, 9):
                    await drafted(verifier, sequence, (next(committed),))
                await asyncio.sleep(0.05)
            assert sum(each.sessions for each in made) == 8
            assert verifier.remote.moved >= 3
            assert not verifier.remote.dropped


async def test_a_replica_that_leaves_loses_no_block_and_is_let_go():
    drafter = ScriptedDrafter()
    leaving = DraftingServer(drafter, "hash", VOCAB, "leaving", NoOpTracer())
    await leaving.start("127.0.0.1")
    async with servers(1) as [stays]:
        listing = Listing(leaving)
        async with sides(listing) as [verifier]:
            verifier.open(1)
            drafter.gate.clear()
            verifier.ask(1)
            await until(drafter.entered.is_set)
            listing.servers.append(stays)
            await until(lambda: len(verifier.remote.spread()) == 2)
            # As Serve has it: no longer listed, then told to end.
            listing.servers.remove(leaving)
            ending = asyncio.create_task(leaving.leave(30))
            await asyncio.sleep(0.2)
            assert not ending.done()
            drafter.gate.set()
            assert (await verifier.reply()).block.tokens == expected([1, 2, 3], 4)
            await asyncio.wait_for(ending, 10)
            await leaving.stop()
            assert await drafted(verifier, 1, (9,)) == "d0"


async def test_without_another_replica_rounds_go_on_without_a_draft_that_could_be_lost():
    async with servers(1) as [only], sides(Listing(only)) as [verifier]:
        verifier.open(1)
        await drafted(verifier, 1)
        await asyncio.wait_for(only.leave(30), 10)
        verifier.ask(1)
        reply = await verifier.reply()
        assert reply.fallback is Fallback.NO_DRAFTER
        assert not reply.depends_on_draws(4, ruled=False)


@pytest.mark.parametrize("law", [COUPLED, REJECTION])
async def test_an_engine_whose_streams_move_and_leave_says_the_same(loaded, engine_with, request_for, law):
    """Replicas come, are preferred and leave while answers are decoded."""
    vocab = len(loaded.tokenizer)
    async with servers(3, NgramDrafter, loaded.tokenizer_hash, vocab) as made:
        listing = Listing(made[0])
        hello = HelloInfo(loaded.tokenizer_hash, vocab, "target", "1", "verifier-1")
        remote = RemoteDrafting(listing, hello, asyncio.get_running_loop())
        engine = engine_with(remote)
        thread = threading.Thread(target=engine.run)
        thread.start()
        try:
            await until(lambda: remote.state == "connected")
            answers, asked = [], []

            def busy():
                """Six answers are under way, however fast they are."""
                while sum(not (each.finished or each.failure) for each in answers) < 6:
                    asked.append(request_for(law=law, seed=len(asked), max_tokens=120))
                    answers.append(Answer())
                    engine.submit(asked[-1], answers[-1].take)
                return True

            busy()
            listing.servers.append(made[1])
            await until(lambda: busy() and made[1].sessions, 30)
            listing.servers.append(made[2])
            listing.servers.remove(made[0])
            await made[0].leave(30)
            await until(lambda: busy() and made[2].sessions, 30)
            await until(lambda: all(answer.finished or answer.failure for answer in answers), 60)
        finally:
            await asyncio.to_thread(engine.stop)
            await asyncio.to_thread(thread.join)
            await remote.aclose()
    plain = answer_all(engine_with(), [replace(each, law=NONE) for each in asked])
    for answer, truth in zip(answers, plain, strict=True):
        assert accounted(answer).claim > Claim.UNPROVEN
        # Greedy, and n-grams draw nothing: so it is under rejection.
        assert answer.token_ids == truth.token_ids
