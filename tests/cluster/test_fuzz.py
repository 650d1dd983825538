"""Messages of every kind through gRPC itself: answered or refused in words, at once, and nothing piles up."""

import os
from collections import Counter

import grpc
import psutil
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.verifier_service.test_fuzz import messages
from truedraft.v1 import inference_pb2 as pb

pytestmark = pytest.mark.cluster

# Many more with `make verify`.
EXAMPLES = int(os.environ.get("TRUEDRAFT_EXAMPLES", "60"))
LONGEST_S, LONGEST_TOKENS = 10.0, 24
# Of which there are so many that caches are full after a third of them.
MANY, GROWTH = 2000, 1.1
FINE = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    # A lossy law that is not served.
    grpc.StatusCode.PERMISSION_DENIED,
}


def spoilt(message, junk, at):
    wire = message.SerializeToString()
    at %= len(wire) + 1
    return wire[:at] + junk + wire[at:]


def short(wire):
    """Most answers of a random model would be as long as they may be."""
    try:
        request = pb.GenerateRequest.FromString(wire)
    except DecodeError:
        return wire
    if request.model == "toy":
        request.model = "tiny"
    if not request.HasField("max_tokens") or request.max_tokens > LONGEST_TOKENS:
        request.max_tokens = LONGEST_TOKENS
    return request.SerializeToString()


junk = st.binary(min_size=1, max_size=12)
wires = messages.map(lambda message: message.SerializeToString())
spoilt_wires = st.builds(spoilt, messages, junk, st.integers(0, 200))


class Memory:
    """Of the processes that a message passes through, as it was a third on and is now."""

    def __init__(self, running):
        replicas = [*running.replicas("gateway"), *running.replicas("verifier")]
        self._processes = [psutil.Process(replica.pid) for replica in replicas]
        self._seen = []

    def look(self):
        self._seen.append([process.memory_info().rss for process in self._processes])

    def told(self):
        """Of each process a third on, and now."""
        return list(zip(self._seen[len(self._seen) // 3], self._seen[-1], strict=True))

    def is_flat(self):
        return all(new <= GROWTH * old for old, new in self.told())


def test_every_message_is_answered_or_refused_at_once(cluster):
    memory, codes = Memory(cluster.running), Counter()
    unary = cluster.channel.unary_unary("/truedraft.v1.InferenceService/Complete")
    stream = cluster.channel.unary_stream("/truedraft.v1.InferenceService/Generate")

    def outcome(ask, wire):
        """The status, and the machine-readable reason of a refusal."""
        try:
            list(ask(wire, timeout=LONGEST_S))
        except grpc.RpcError as error:
            reason = dict(error.trailing_metadata() or ()).get("truedraft-reason")
            return error.code(), reason, error.details()
        return grpc.StatusCode.OK, "", ""

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(wire=wires | spoilt_wires, streams=st.booleans())
    def ask(wire, streams):
        code, reason, details = outcome(stream if streams else unary, short(wire))
        assert code in FINE, (code, details)
        assert reason is not None
        codes[code] += 1
        memory.look()

    ask()
    print(dict(codes), memory.told())
    assert codes[grpc.StatusCode.OK]
    assert codes[grpc.StatusCode.INVALID_ARGUMENT]
    assert cluster.running.info("verifier")["active"] == 0
    if EXAMPLES >= MANY:
        assert memory.is_flat()
