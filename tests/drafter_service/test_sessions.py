import pytest

from cluster.drafting.wire import MAX_BLOCK_LENGTH, open_message, session_spec
from cluster.speculation.messages import PrefixHash
from cluster.speculation.sampling import Sampling
from drafter_service.sessions import SessionFault, StreamSessions
from tests.drafting.helpers import VOCAB, spec
from truedraft.v1 import drafting_pb2 as pb


def opening(sequence=0, epoch=1, prompt=(1, 2, 3), **changes):
    message = open_message(spec(sequence, prompt), epoch, list(prompt))
    for name, value in changes.items():
        setattr(message, name, value)
    return message


def plan(text, committed=(), sequence=0, epoch=1, length=4):
    whole = [*text, *committed]
    return pb.Plan(
        sequence=sequence,
        epoch=epoch,
        base_committed_len=len(text),
        committed_ids=committed,
        prefix_hash=PrefixHash(whole).digest(),
        block_length=length,
    )


def code_of(call, message):
    with pytest.raises(SessionFault) as caught:
        call(message)
    assert str(caught.value)
    return caught.value.code


def test_the_wire_keeps_a_session_spec():
    said = spec(
        2**63,
        (5, 6),
        Sampling(0.3, top_k=7, top_p=0.9, min_p=0.01, typical_p=0.8, eta_cutoff=0.002),
        2**64 - 1,
    )
    assert session_spec(open_message(said, 1, [5, 6])) == said


def test_commits_extend_the_session():
    sessions = StreamSessions(VOCAB)
    assert sessions.open(opening()) is None
    sessions.commit(plan([1, 2, 3], [4, 5]))
    session = sessions.commit(plan([1, 2, 3, 4, 5], [6]))
    assert session.tokens == [1, 2, 3, 4, 5, 6]
    assert sessions.close_all() == [session]
    assert sessions.close_all() == []


def test_unknown_sequences_and_epochs():
    sessions = StreamSessions(VOCAB)
    assert code_of(sessions.commit, plan([1, 2, 3])) == pb.FAULT_CODE_UNKNOWN_SEQUENCE
    sessions.open(opening(epoch=2))
    assert code_of(sessions.commit, plan([1, 2, 3], epoch=1)) == pb.FAULT_CODE_UNKNOWN_SEQUENCE
    assert sessions.close(pb.Close(sequence=0, epoch=1)) is None
    assert sessions.close(pb.Close(sequence=0, epoch=2)) is not None
    assert code_of(sessions.commit, plan([1, 2, 3], epoch=2)) == pb.FAULT_CODE_UNKNOWN_SEQUENCE


def test_another_prefix_is_noticed_by_length_and_by_hash():
    sessions = StreamSessions(VOCAB)
    sessions.open(opening())
    assert code_of(sessions.commit, plan([1, 2])) == pb.FAULT_CODE_PREFIX_MISMATCH
    assert code_of(sessions.commit, plan([1, 2, 4])) == pb.FAULT_CODE_PREFIX_MISMATCH
    replaced = sessions.open(opening(epoch=2, prompt=(1, 2, 4)))
    assert replaced is not None
    assert sessions.commit(plan([1, 2, 4], [5], epoch=2)).tokens == [1, 2, 4, 5]


def test_what_cannot_be_honoured_is_refused_and_changes_nothing():
    sessions = StreamSessions(VOCAB)
    sessions.open(opening(epoch=3))
    invalid = pb.FAULT_CODE_INVALID_MESSAGE
    assert code_of(sessions.open, opening(epoch=3)) == invalid
    assert code_of(sessions.open, opening(sequence=1, epoch=0)) == invalid
    assert code_of(sessions.open, opening(sequence=1, prompt=())) == invalid
    assert code_of(sessions.open, opening(sequence=1, prompt=(VOCAB,))) == invalid
    assert code_of(sessions.open, opening(sequence=1, law="rumour")) == pb.FAULT_CODE_UNSUPPORTED_LAW
    hot = opening(sequence=1)
    hot.sampling.temperature = float("nan")
    assert code_of(sessions.open, hot) == invalid
    assert code_of(sessions.commit, plan([1, 2, 3], [VOCAB], epoch=3)) == invalid
    assert code_of(sessions.commit, plan([1, 2, 3], epoch=3, length=MAX_BLOCK_LENGTH + 1)) == invalid
    assert sessions.commit(plan([1, 2, 3], [4], epoch=3)).tokens == [1, 2, 3, 4]
