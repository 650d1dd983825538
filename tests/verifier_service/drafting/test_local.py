import pytest

from cluster.drafting import DraftingError, NgramDrafter
from cluster.speculation.messages import PrefixHash
from tests.drafting.helpers import ScriptedDrafter, expected, spec
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.port import DraftTicket, Fallback


def ticket(text, committed=(), plan_id=1, length=3, sequence=1):
    whole = [*text, *committed]
    digest = PrefixHash(whole).digest()
    return DraftTicket(sequence, plan_id, tuple(committed), len(whole), digest, length, "")


def connected(drafter):
    drafting, replies = LocalDrafting(drafter), []
    drafting.connect(replies.append)
    return drafting, replies


def test_answers_before_request_returns():
    drafting, replies = connected(ScriptedDrafter())
    drafting.open(spec(1, [1, 2]))
    drafting.request(ticket([1, 2], plan_id=4))
    drafting.request(ticket([1, 2], [5, 6], plan_id=5))
    assert [reply.plan_id for reply in replies] == [4, 5]
    assert [reply.block.tokens for reply in replies] == [expected([1, 2], 3), expected([1, 2, 5, 6], 3)]
    assert replies[0].drafter.replica == "in-process"
    assert replies[0].fallback is None


def test_a_drafter_that_fails_is_a_fallback_whatever_it_raises():
    class Failing(NgramDrafter):
        error = DraftingError("no draft today")

        def draft(self, jobs):
            raise self.error

    drafter = Failing()
    drafting, replies = connected(drafter)
    drafting.open(spec(1))
    drafting.request(ticket([1, 2, 3]))
    drafter.error = ZeroDivisionError("deep inside")
    drafting.request(ticket([1, 2, 3], plan_id=2))
    assert [reply.fallback for reply in replies] == [Fallback.DRAFTER_FAULT] * 2
    assert [reply.block for reply in replies] == [None, None]
    assert "no draft today" in replies[0].detail
    assert "deep inside" in replies[1].detail


def test_close_and_the_order_of_calls():
    drafting, replies = connected(ScriptedDrafter())
    drafting.close(1, "never opened")
    drafting.open(spec(1, [1]))
    drafting.close(1, "stop")
    drafting.request(ticket([1]))
    assert replies[0].fallback is Fallback.DRAFTER_FAULT
    with pytest.raises(ValueError, match="connect"):
        LocalDrafting(ScriptedDrafter()).request(ticket([1]))
