"""A drafter that fails again and again is left alone for a while; one that fails now and then is not."""

import asyncio

import pytest

from tests.drafting.helpers import ScriptedDrafter, until
from tests.verifier_service.drafting.wire import good, misbehaving, server, side
from verifier_service.drafting.breaker import Breaker
from verifier_service.drafting.port import Fallback


def failing(breaker, now, times=6):
    return [breaker.failed(now) for _ in range(times)]


def test_it_opens_after_failures_in_a_row_and_for_longer_each_time():
    breaker, now, rests = Breaker(), 100.0, []
    for _ in range(9):
        assert failing(breaker, now) == [False] * 5 + [True]
        rests.append(breaker.rests(now))
        now += rests[-1]
        assert breaker.rests(now) == 0.0
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


def test_answers_between_failures_keep_it_closed_and_enough_of_them_make_good():
    breaker = Breaker()
    for _ in range(50):
        assert not any(failing(breaker, 0.0, times=5))
        breaker.answered()
    assert failing(breaker, 0.0)[-1]
    for _ in range(50):
        breaker.answered()
    failing(breaker, 10.0)
    assert breaker.rests(10.0) == 1.0


@pytest.mark.parametrize("fault", ["invalid", "stale", "silent"])
async def test_a_drafter_that_never_sends_what_was_asked_is_left_alone_and_tried_again(fault):
    change = {"invalid": {"ids": [10**6, 1]}, "stale": {"incarnation": 9}, "silent": None}[fault]
    broken = [True]

    def answer(plan, opened):
        if not broken[0]:
            return [good(plan)]
        return [] if change is None else [good(plan, **change)]

    async with misbehaving(answer) as address, side(address) as verifier:
        verifier.open()
        for count in range(6):
            verifier.ask(committed=(count,))
            if change is not None:
                assert (await verifier.reply()).fallback is not None
        if change is None:
            # The seventh ticket overtakes the sixth.
            verifier.ask(committed=(6,))
            assert (await verifier.reply()).fallback is Fallback.DRAFTER_FAULT
        await verifier.until("resting")
        verifier.ask(committed=(7,))
        assert (await verifier.reply()).fallback is Fallback.NO_DRAFTER
        broken[0] = False
        await verifier.until("connected")
        verifier.ask(committed=(8,))
        assert (await verifier.reply()).block.tokens == (1, 2)
        assert verifier.remote._sessions.links.rests == 1


async def test_tickets_under_way_when_a_drafter_is_left_are_not_lost_by_chance():
    """They may be late for what is in them, as those before them were."""
    drafter = ScriptedDrafter()
    async with server(drafter) as running, side(running.address) as verifier:
        drafter.gate.clear()
        for sequence in (1, 2):
            verifier.open(sequence)
            verifier.ask(sequence)
        for count in range(6):
            verifier.ask(1, committed=(count,))
        replies = [await verifier.reply() for _ in range(2)]
        assert {reply.sequence for reply in replies} == {1, 2}
        assert {reply.fallback for reply in replies} == {Fallback.DRAFTER_FAULT}
        drafter.gate.set()
        await until(lambda: verifier.remote.state == "connected")
        await asyncio.sleep(0)
