"""Blocks that are drafted before the outcome of the round is known: used iff they continue what it was."""

import asyncio
import itertools

import pytest

from cluster.drafting import NgramDrafter
from cluster.drafting.drafter import DraftJob
from cluster.speculation.law import REJECTION
from cluster.speculation.messages import PrefixHash
from tests.drafting.helpers import ScriptedDrafter, expected, spec, until
from tests.verifier_service.drafting.wire import good, misbehaving, server, side
from truedraft.v1 import drafting_pb2 as pb


def outcome(text, block):
    """What the drafter takes to follow: its block and its own next token; and its block after that."""
    bonus, *rest = expected([*text, *block], 5)
    return (*block, bonus), tuple(rest)


async def pushed(verifier):
    """A block that was drafted ahead has come."""
    await until(lambda: 1 in verifier.remote._forecasts)


async def test_a_block_that_was_guessed_right_is_there_before_it_is_asked_for():
    drafter = ScriptedDrafter()
    async with server(drafter) as running, side(running.address) as verifier:
        verifier.open()
        verifier.ask(ahead=4)
        block = (await verifier.reply()).block.tokens
        for _ in range(3):
            await pushed(verifier)
            guess, ahead = outcome(verifier.texts[1], block)
            # With the gate shut nothing can be drafted any more.
            drafter.gate.clear()
            verifier.ask(committed=guess, ahead=4)
            reply = await verifier.reply()
            drafter.gate.set()
            assert (reply.block.tokens, reply.ahead, reply.trip) == (ahead, True, 0.0)
            block = ahead
        await pushed(verifier)
        assert (verifier.remote.ahead["used"], verifier.remote.ahead["wasted"]) == (12, 0)
        assert not verifier.remote.dropped


async def test_a_block_that_was_guessed_wrong_is_wasted_and_counted():
    async with server(ScriptedDrafter()) as running, side(running.address) as verifier:
        verifier.open()
        verifier.ask(ahead=4)
        block = (await verifier.reply()).block.tokens
        await pushed(verifier)
        verifier.ask(committed=(*block[:2], 999), ahead=4)
        reply = await verifier.reply()
        assert (reply.block.tokens, reply.ahead) == (expected(verifier.texts[1], 4), False)
        assert (verifier.remote.ahead["used"], verifier.remote.ahead["wasted"]) == (0, 4)
        await pushed(verifier)
        verifier.remote.close(1, "over")
        await until(lambda: verifier.remote.ahead["wasted"] == 8)


async def test_a_ticket_that_overtakes_its_block_is_answered_by_it_once():
    drafter = ScriptedDrafter()
    async with server(drafter) as running, side(running.address) as verifier:
        verifier.open()
        verifier.ask(ahead=4)
        block = (await verifier.reply()).block.tokens
        await pushed(verifier)
        guess, ahead = outcome(verifier.texts[1], block)
        # As if it were still on its way.
        verifier.remote._forecasts.drop(1)
        verifier.ask(committed=guess, ahead=4)
        reply = await verifier.reply()
        # The drafter knows it still, and does not draft it again.
        assert reply.block.tokens == ahead
        assert sum(len(job.committed) > 0 and not job.guess for call in drafter.calls for job in call) == 0


async def test_a_shorter_ticket_takes_the_beginning_of_the_block():
    async with server(ScriptedDrafter()) as running, side(running.address) as verifier:
        verifier.open()
        verifier.ask(ahead=4)
        block = (await verifier.reply()).block.tokens
        await pushed(verifier)
        guess, ahead = outcome(verifier.texts[1], block)
        verifier.ask(committed=guess, length=1)
        assert (await verifier.reply()).block.tokens == ahead[:1]
        assert verifier.remote.ahead == {"used": 1, "wasted": 3}


async def test_a_ticket_for_more_than_was_granted_is_answered_as_one_for_as_much():
    async with server(ScriptedDrafter()) as running, side(running.address) as verifier:
        verifier.open()
        verifier.ask(length=3, ahead=3)
        block = (await verifier.reply()).block.tokens
        await pushed(verifier)
        guess, ahead = outcome(verifier.texts[1], block)
        verifier.ask(committed=guess, length=5, ahead=5)
        reply = await verifier.reply()
        # It is told that the drafter did not end the block by itself, which goes on from it.
        assert (reply.block.tokens, reply.asked) == (ahead[:3], 3)
        await pushed(verifier)


@pytest.mark.parametrize("how", ["closed", "lost"])
async def test_a_session_that_ends_while_its_block_is_drafted_is_not_opened_again(how):
    drafter = ScriptedDrafter()
    async with server(drafter) as running:
        async with side(running.address) as verifier:
            verifier.open()
            drafter.gate.clear()
            verifier.ask(ahead=4)
            await until(drafter.entered.is_set)
            if how == "closed":
                verifier.remote.close(1, "over")
                await until(lambda: not running.sessions)
        await until(lambda: not running.sessions)
        drafter.gate.set()
        await until(lambda: not drafter.texts)
        # Behind whatever the worker still had to do.
        async with side(running.address) as other:
            other.open(2, prompt=(5,))
            other.ask(2)
            await other.reply()
            assert len(drafter.texts) == 1


async def test_nothing_is_drafted_ahead_without_a_grant_or_where_drafts_have_noise_of_their_round():
    drafter = ScriptedDrafter()
    async with server(drafter) as running, side(running.address) as verifier:
        verifier.open(1)
        verifier.ask(1)
        await verifier.reply()
        verifier.texts[2] = [5]
        verifier.remote.open(spec(2, (5,), law=REJECTION, entries=4))
        verifier.ask(2, ahead=4)
        await verifier.reply()
        verifier.ask(1, committed=(7,))
        await verifier.reply()
        assert all(not job.guess for call in drafter.calls for job in call)


@pytest.mark.parametrize("ahead", [8, 2], ids=["as much as is asked for", "less"])
@pytest.mark.parametrize("minimum", [1, 2, 3])
async def test_a_drafter_that_foresees_is_never_waited_for(ahead, minimum):
    """Whatever the outcome: all of the block, a part of it, tokens that occurred before and others."""
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 9, 5, 6, 8, 1, 2, 3]
    async with server(NgramDrafter(minimum)) as running, side(running.address) as verifier:
        verifier.open(prompt=text)
        assert verifier.remote.foresees
        verifier.ask(length=8, ahead=ahead)
        block = (await verifier.reply()).block.tokens
        said, trips = set(), []
        for kept, token in itertools.islice(itertools.product((0, 9, 1, 2), (5, 9, 4, 2, 77, 1)), 24):
            await pushed(verifier)
            outcome = block[:kept]
            token = token if (token,) != block[len(outcome) : len(outcome) + 1] else 50
            verifier.ask(committed=(*outcome, token), length=8, ahead=ahead)
            reply = await verifier.reply()
            assert reply.ahead
            # Nobody waited, and yet it is known how long that would have been; of each forecast once.
            assert 0.0 <= reply.trip < 10.0
            trips.append(reply.trip)
            block = reply.block.tokens
            fresh = NgramDrafter(minimum)
            fresh.open(spec(1, verifier.texts[1]))
            assert block == fresh.draft([DraftJob(1, (), ahead)])[0].tokens
            said.add(len(block) > 0)
        assert said == {True, False}
        assert trips[0] > 0.0
        assert (0.0 in trips) == (minimum > 1)
        assert not verifier.remote.dropped


async def test_a_drafter_that_copies_is_not_told_of_rounds_after_which_there_is_nothing_to_copy():
    async with server(NgramDrafter()) as running, side(running.address) as verifier:
        verifier.open(prompt=[1, 2, 3, 4, 5, 1])
        verifier.ask(ahead=8)
        assert not (await verifier.reply()).block.tokens
        blocks, messages, heard = [], [], []
        for token in (6, 7, 1, 2, 3, 9, 8):
            await pushed(verifier)
            before = verifier.remote.traffic["sent"]
            heard.append(verifier.ask(committed=(token,), ahead=8))
            reply = await verifier.reply()
            assert reply.ahead
            blocks.append(reply.block.tokens)
            await asyncio.sleep(0.02)
            messages.append(verifier.remote.traffic["sent"] > before)
        # When two of three tokens are there, and while there is a block.
        assert messages == heard == [False, False, False, True, True, False, False]
        assert blocks == [(), (), (), (), (4, 5, 1), (), ()]
        # A sequence that is opened anew is another.
        verifier.open(prompt=[1, 2, 3, 4, 5, 1])
        verifier.ask(ahead=8)
        await pushed(verifier)
        verifier.ask(committed=(6,), ahead=8)
        verifier.remote.close(1, "over")
        verifier.open(prompt=[7, 8])
        verifier.ask(ahead=8)
        for _ in range(3):
            reply = await verifier.reply()
            assert reply.fallback is None
        assert not verifier.remote.dropped


async def test_of_an_outcome_that_no_forecast_can_tell_a_drafter_that_foresees_is_asked():
    """More than one token after the block; and what follows its end, where a beginning was verified."""
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    async with server(NgramDrafter(minimum=2)) as running, side(running.address) as verifier:
        verifier.open(prompt=text)
        verifier.ask(ahead=8)
        assert (await verifier.reply()).block.tokens == (4, 5, 6)
        for committed, ahead, block in (
            ((4, 5, 6), False, (7, 1, 2, 3)),
            ((50, 2, 3), False, (4, 5)),
            ((52,), True, ()),
        ):
            await pushed(verifier)
            verifier.ask(committed=committed, ahead=8)
            reply = await verifier.reply()
            assert (reply.block.tokens, reply.ahead) == (block, ahead)


async def test_of_a_block_that_admission_cut_both_sides_go_on_with_the_rest():
    """The drafter foresees what follows that, as if it had drafted no more."""
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    async with server(NgramDrafter(minimum=2)) as running, side(running.address) as verifier:
        verifier.open(prompt=text)
        verifier.ask(length=8, ahead=8)
        assert (await verifier.reply()).block.tokens == (4, 5, 6)
        for committed, block in (
            # The first draft alone was verified, and the second one is the verifier's own token.
            ((4, 5), (6,)),
            ((6, 7), (8, 9, 1, 2, 3)),
            ((8,), (9, 1, 2, 3)),
            # Wrong where it was cut: nothing follows, as the forecast says.
            ((9, 50), ()),
        ):
            await pushed(verifier)
            verifier.ask(committed=committed, length=8, ahead=8)
            reply = await verifier.reply()
            assert (reply.block.tokens[: len(block)], bool(reply.block.tokens)) == (block, bool(block))
            assert reply.ahead
        assert not verifier.remote.dropped


async def test_what_follows_a_prompt_is_foreseen_while_that_is_computed():
    async with server(NgramDrafter(minimum=2)) as running, side(running.address) as verifier:
        for sequence, token, block in ((1, 3, (4, 5)), (2, 50, ())):
            verifier.open(sequence, prompt=[1, 2, 3, 4, 5, 1, 2])
            # A grant alone, to which no reply comes.
            verifier.ask(sequence, length=0, ahead=2)
            await until(lambda number=sequence: number in verifier.remote._forecasts)
            assert verifier.replies.empty()
            verifier.ask(sequence, committed=(token,), ahead=8)
            reply = await verifier.reply()
            assert (reply.sequence, reply.block.tokens, reply.ahead) == (sequence, block, True)
        assert verifier.replies.empty()
        assert not verifier.remote.dropped


async def test_a_grant_that_cannot_be_given_harms_no_ticket():
    async with server(ScriptedDrafter()) as running, side(running.address) as verifier:
        # Of a sequence that is not open, and to a drafter that foresees nothing.
        verifier.texts[2] = [1, 2]
        verifier.ask(2, length=0, ahead=4)
        verifier.open()
        verifier.ask(length=0, ahead=4)
        verifier.ask(committed=(7,))
        reply = await verifier.reply()
        assert (reply.sequence, reply.block.tokens) == (1, expected([1, 2, 3, 7], 4))
        assert not verifier.remote.dropped


def forecast(plan, opened, kept=(1, 2, 9), **changes):
    """Of the block that `good` makes: (1, 2) after it was kept and followed by 9."""
    text = [*opened.prompt_ids, *plan.committed_ids]
    fields = {
        "sequence": plan.sequence,
        "epoch": plan.epoch,
        "plan_id": plan.plan_id,
        "incarnation": 5,
        "outcomes": [
            {"prefix_hash": PrefixHash([*text, *kept]).digest(), "ids": [1, 2], "max_q": [1.0, 1.0]}
        ],
    }
    return pb.Forecast(**(fields | changes))


@pytest.mark.parametrize(
    ("granted", "change", "words"),
    [
        (0, {}, "ahead"),
        (4, {"epoch": 9}, "ahead"),
        (4, {"incarnation": 9}, "ahead"),
        (4, {"plan_id": 77}, "ahead"),
        (1, {}, "invalid"),
        (4, {"outcomes": [{"ids": [1, 10**6], "max_q": [1.0, 1.0]}]}, "invalid"),
    ],
    ids=["no grant", "epoch", "incarnation", "plan", "longer than granted", "beyond the vocabulary"],
)
async def test_a_forecast_that_was_not_granted_is_dropped(granted, change, words):
    def answer(plan, opened):
        return [good(plan), forecast(plan, opened, **change)]

    async with misbehaving(answer) as address, side(address) as verifier:
        verifier.open()
        verifier.ask(ahead=granted)
        assert (await verifier.reply()).block.tokens == (1, 2)
        await until(lambda: verifier.remote.dropped[words])
        verifier.ask(committed=(1, 2, 9))
        assert not (await verifier.reply()).ahead


async def test_a_forecast_of_another_prefix_answers_nothing():
    def answer(plan, opened):
        return [good(plan), forecast(plan, opened, kept=(7, 7))]

    async with misbehaving(answer) as address, side(address) as verifier:
        verifier.open()
        for committed in ((), (1, 2, 9), (1, 2, 9)):
            verifier.ask(committed=committed, ahead=4)
            reply = await verifier.reply()
            assert (reply.block.tokens, reply.ahead) == ((1, 2), False)
