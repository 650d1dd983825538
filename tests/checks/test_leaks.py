"""The checks of leaks and of lost verifiers themselves: they would notice what they look for."""

import os

import pytest

from cluster.checks.leaks import Held, held
from cluster.checks.losses import Outcome
from cluster.client import Answer
from truedraft.v1 import inference_pb2 as pb

BEFORE = Held({"verifier's tasks": 4, "verifier's kv_tokens": 0}, {"verifier": 1000})


@pytest.mark.parametrize(
    ("counts", "memory", "fault"),
    [
        ({"verifier's tasks": 4, "verifier's kv_tokens": 0}, 1049, ""),
        ({"verifier's tasks": 3, "verifier's kv_tokens": 0}, 900, ""),
        ({"verifier's tasks": 5, "verifier's kv_tokens": 0}, 1000, "verifier's tasks: 4 before, 5 after"),
        ({"verifier's tasks": 4, "verifier's kv_tokens": 16}, 1000, "verifier's kv_tokens: 0 before, 16"),
        ({"verifier's tasks": 4, "verifier's kv_tokens": 0}, 1050, "memory of the verifier grew by 5.00%"),
    ],
)
def test_what_is_left_is_a_fault(counts, memory, fault):
    faults = Held(counts, {"verifier": memory}).faults(BEFORE)
    assert len(faults) == bool(fault)
    assert fault in "".join(faults)


def test_what_is_held_is_named_after_its_process():
    found = held({"gateway": {"tasks": 3, "in_flight": 1, "labels": {}}}, {"gateway": os.getpid()})
    assert set(found.counts) == {"gateway's tasks", "gateway's in_flight", "gateway's file descriptors"}
    assert found.counts["gateway's file descriptors"] > 0
    assert found.memory["gateway"] > 2**20


@pytest.mark.parametrize(
    ("tokens", "counted", "lost", "good"),
    [
        ([1, 2, 3], 3, 1, True),
        # Nobody was met by a death.
        ([1, 2, 3], 3, 0, False),
        ([1, 2, 2, 3], 4, 1, False),
        ([1, 2], 2, 1, False),
        ([1, 2, 3], 2, 1, False),
    ],
)
@pytest.mark.parametrize("summed", [0, -1])
def test_an_answer_with_other_tokens_is_a_fault(tokens, counted, lost, good, summed):
    provenance = pb.Provenance(verifiers_lost=lost, accepted_tokens=1, bonus_tokens=2 + summed)
    final = pb.Answer(usage=pb.Usage(output_tokens=counted), provenance=provenance)
    outcome = Outcome()
    outcome.judge(Answer(token_ids=tokens, final=final), [1, 2, 3])
    assert outcome.good is (good and not summed)
