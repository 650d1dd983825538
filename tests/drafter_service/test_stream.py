"""Plans on one stream, and what answers them: blocks, faults, spans."""

from opentelemetry.trace import NoOpTracer, SpanKind, StatusCode

from cluster.drafting import NgramDrafter
from cluster.drafting.wire import open_message, take_proposal
from cluster.speculation.messages import PrefixHash
from cluster.telemetry import names
from drafter_service.server import DraftingServer
from tests.drafter_service.peer import peer
from tests.drafting.helpers import VOCAB, expected, spec, until
from truedraft.v1 import drafting_pb2 as pb


async def test_a_block_answers_its_plan(server):
    async with peer(server) as verifier:
        await verifier.open([1, 2, 3])
        await verifier.plan([1, 2, 3], plan_id=5)
        block = await verifier.hear()
        assert tuple(block.ids) == expected([1, 2, 3], 4)
        assert list(block.max_q) == [0.5] * 4
        assert (block.sequence, block.epoch, block.plan_id) == (0, 1, 5)
        assert block.prefix_hash == PrefixHash([1, 2, 3]).digest()
        assert block.stop_reason == pb.STOP_REASON_LENGTH
        await verifier.plan([1, 2, 3], [9, 8], plan_id=6, length=2)
        block = await verifier.hear()
        assert tuple(block.ids) == expected([1, 2, 3, 9, 8], 2)


async def test_plans_that_come_together_are_answered_in_order_and_together():
    made = DraftingServer(NgramDrafter(), "abc", VOCAB, "replica-1", NoOpTracer())
    await made.start()
    try:
        async with peer(made) as verifier:
            said, text = [], [1, 2, 3, 1, 2, 3]
            for sequence in range(3):
                opened = open_message(spec(sequence, text), 1, text)
                plan = pb.Plan(
                    sequence=sequence,
                    epoch=1,
                    plan_id=sequence + 1,
                    base_committed_len=len(text),
                    prefix_hash=PrefixHash(text).digest(),
                    block_length=sequence + 1,
                )
                said += [pb.VerifierMessage(open=opened), pb.VerifierMessage(plan=plan)]
            await verifier.say_all(*said, pb.VerifierMessage(close=pb.Close(sequence=1, epoch=1)))
            # A drafter on the loop has drafted for all of them before the first block is written.
            blocks = [each.block for each in (await verifier.read()).messages]
            assert [(each.sequence, list(each.ids)) for each in blocks] == [
                (0, [1]),
                (1, [1, 2]),
                (2, [1, 2, 3]),
            ]
            assert made.sessions == 2
    finally:
        await made.stop()


async def test_a_proposal_goes_with_its_block_in_as_many_entries_as_were_asked_for(server):
    async with peer(server) as verifier:
        await verifier.open([1, 2, 3], law="rejection", proposal_entries=6)
        await verifier.plan([1, 2, 3], length=3)
        block = await verifier.hear()
        assert block.proposal_entries == 6
        proposal = take_proposal(block)
        assert proposal.ids.shape == (3, 6)
        assert tuple(proposal.ids[:, 0].tolist()) == tuple(block.ids)
        assert proposal.probs[:, :2].tolist() == [[0.75, 0.25]] * 3
        assert not proposal.probs[:, 2:].any()


async def test_a_proposal_wider_than_asked_for_is_a_fault_and_the_stream_goes_on(server):
    async with peer(server) as verifier:
        await verifier.open([1, 2, 3], law="block", proposal_entries=1)
        await verifier.plan([1, 2, 3])
        fault = await verifier.hear()
        assert (fault.code, fault.plan_id) == (pb.FAULT_CODE_DRAFTER_FAILED, 1)
        await verifier.open([1], sequence=5)
        await verifier.plan([1], sequence=5)
        assert tuple((await verifier.hear()).ids) == expected([1], 4)


async def test_plans_that_wait_share_a_call_and_the_newest_of_a_sequence_wins(server, drafter):
    async with peer(server) as verifier:
        for number in range(3):
            await verifier.open([number], sequence=number)
        drafter.gate.clear()
        await verifier.plan([0], sequence=0)
        await until(drafter.entered.is_set)
        await verifier.plan([1], sequence=1, plan_id=10)
        await verifier.plan([2], sequence=2, plan_id=20)
        await verifier.plan([1], [7], sequence=1, plan_id=11)
        # Answered in order, so the plans before it have been taken as well.
        await verifier.plan([1], sequence=99)
        assert (await verifier.hear()).code == pb.FAULT_CODE_UNKNOWN_SEQUENCE
        drafter.gate.set()
        await verifier.hear()
        blocks = {block.plan_id: tuple(block.ids) for block in [await verifier.hear() for _ in range(2)]}
        assert blocks == {11: expected([1, 7], 4), 20: expected([2], 4)}
        assert len(drafter.calls) == 2


async def test_a_failing_drafter_costs_its_own_plan_alone(server, drafter):
    drafter.poison = {13}
    async with peer(server) as verifier:
        for number in range(3):
            await verifier.open([number, 13 if number == 1 else 5], sequence=number)
        drafter.gate.clear()
        await verifier.plan([0, 5], sequence=0, plan_id=1)
        await until(drafter.entered.is_set)
        for number, text in enumerate([[0, 5], [1, 13], [2, 5]]):
            committed = [6] if number == 0 else []
            await verifier.plan(text, committed, sequence=number, plan_id=10 + number)
        await verifier.plan([1], sequence=99)
        assert isinstance(await verifier.hear(), pb.Fault)
        drafter.gate.set()
        await verifier.hear()
        answers = {answer.plan_id: answer for answer in [await verifier.hear() for _ in range(3)]}
        assert tuple(answers[10].ids) == expected([0, 5, 6], 4)
        assert answers[11].code == pb.FAULT_CODE_DRAFTER_FAILED
        assert "poisoned" in answers[11].detail
        assert tuple(answers[12].ids) == expected([2, 5], 4)
        # What the failed calls committed twice or not at all is not drafted from.
        for number, text in enumerate([[0, 5, 6], [1, 13], [2, 5]]):
            await verifier.plan(text, [4], sequence=number)
            assert tuple((await verifier.hear()).ids) == expected([*text, 4], 4)


async def test_what_cannot_be_honoured_is_faulted_and_the_stream_goes_on(server):
    async with peer(server) as verifier:
        for misplaced in (
            pb.DraftRequest(messages=[pb.VerifierMessage()]),
            pb.DraftRequest(),
            pb.DraftRequest(hello=pb.Hello()),
        ):
            await verifier.call.write(misplaced)
            nonsense = await verifier.hear()
            assert (nonsense.code, nonsense.epoch) == (pb.FAULT_CODE_INVALID_MESSAGE, 0)
        await verifier.open([1], law="rumour")
        assert (await verifier.hear()).code == pb.FAULT_CODE_UNSUPPORTED_LAW
        await verifier.open([VOCAB])
        fault = await verifier.hear()
        assert (fault.code, fault.epoch) == (pb.FAULT_CODE_INVALID_MESSAGE, 1)
        await verifier.plan([1], plan_id=3)
        fault = await verifier.hear()
        assert (fault.code, fault.plan_id) == (pb.FAULT_CODE_UNKNOWN_SEQUENCE, 3)
        await verifier.open([1])
        await verifier.plan([2])
        assert (await verifier.hear()).code == pb.FAULT_CODE_PREFIX_MISMATCH
        await verifier.open([2], epoch=2)
        await verifier.plan([2], epoch=2)
        assert tuple((await verifier.hear()).ids) == expected([2], 4)


async def test_a_plan_has_a_server_span_that_its_block_continues(server, spans, drafter):
    drafter.poison = {13}
    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    async with peer(server) as verifier:
        await verifier.open([1])
        await verifier.plan([1], traceparent=f"00-{trace_id}-{parent}-01")
        block = await verifier.hear()
        await verifier.plan([1], [13], traceparent=f"00-{trace_id}-{parent}-01")
        await verifier.hear()
    drafted, failed = spans.get_finished_spans()
    assert (drafted.name, drafted.kind) == (names.SPAN_DRAFT, SpanKind.SERVER)
    assert f"{drafted.parent.span_id:016x}" == parent
    assert block.traceparent == f"00-{trace_id}-{drafted.context.span_id:016x}-01"
    assert drafted.attributes[names.DRAFT_TOKENS] == 4
    assert drafted.attributes[names.DRAFTER_MODEL] == "scripted"
    assert drafted.attributes[names.DRAFTER_REPLICA] == "replica-1"
    assert failed.status.status_code is StatusCode.ERROR


async def test_a_plan_whose_block_was_told_before_has_a_span_as_well(server, spans):
    trace = f"00-{'1' * 32}-{'2' * 16}-01"
    async with peer(server) as verifier:
        await verifier.open([1])
        await verifier.plan([1], ahead_length=3, traceparent=trace)
        block = tuple((await verifier.hear()).ids)
        [outcome] = (await verifier.hear()).outcomes
        bonus, *ahead = expected([1, *block], 4)
        assert list(outcome.ids) == ahead
        await verifier.plan([1], (*block, bonus), plan_id=2, ahead_length=3, traceparent=trace, held=True)
        # The drafter was not asked, and its span is the held plan's.
        await until(lambda: len(spans.get_finished_spans()) == 2)
    asked, told = (dict(span.attributes) for span in spans.get_finished_spans())
    assert not asked[names.DRAFT_AHEAD]
    assert (told[names.DRAFT_AHEAD], told[names.DRAFT_TOKENS], told[names.PLAN_LENGTH]) == (True, 3, 4)
