"""Fields that ride in metadata and headers: taken, contradicted, unknown."""

import pytest

from cluster.gateway.errors import Reason
from cluster.gateway.extras import with_extras
from cluster.gateway.invalid import InvalidRequestError
from truedraft.v1 import inference_pb2 as pb


def test_they_are_the_requests_own():
    request = pb.GenerateRequest(prompt="x")
    metadata = [
        ("Truedraft-Law", "collaborative:lenience"),
        ("truedraft-domain", "coding"),
        ("truedraft-law-params", "lenience=0.5, ceiling=2"),
        ("truedraft-max-distortion", "0.25"),
        ("user-agent", "x"),
        ("other-bin", b"\0"),
    ]
    taken = with_extras(request, metadata)
    assert taken == pb.GenerateRequest(
        prompt="x",
        law="collaborative:lenience",
        domain="coding",
        law_params={"lenience": 0.5, "ceiling": 2.0, "max_distortion": 0.25},
    )
    # The caller's own message stays as it was.
    assert request == pb.GenerateRequest(prompt="x")
    assert with_extras(request, [("traceparent", "y")]) is request


def test_what_is_said_twice_must_be_the_same():
    request = pb.GenerateRequest(law="none", domain="a", law_params={"max_distortion": 0.5})
    same = [("truedraft-law", "none"), ("truedraft-domain", "a"), ("truedraft-max-distortion", "0.50")]
    assert with_extras(request, same) == request


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ([("truedraft-law", "coupled")], "law"),
        ([("truedraft-domain", "b")], "domain"),
        ([("truedraft-max-distortion", "0.4")], "law_params"),
        ([("truedraft-law-params", "max_distortion=0.4")], "law_params"),
        ([("truedraft-domain", "a"), ("truedraft-domain", "b")], "truedraft-domain"),
        ([("truedraft-max-distortion", "much")], "truedraft-max-distortion"),
        ([("truedraft-law-params", "lenience")], "truedraft-law-params"),
        ([("truedraft-seed", "1")], "truedraft-seed"),
        ([("truedraft-law-bin", b"none")], "truedraft-law-bin"),
        ([("truedraft-" + "x" * 5000, "1")], ("truedraft-" + "x" * 5000)[:80]),
    ],
)
def test_contradictions_and_unknown_names_are_refused(metadata, field):
    request = pb.GenerateRequest(law="none", domain="a", law_params={"max_distortion": 0.5})
    with pytest.raises(InvalidRequestError) as caught:
        with_extras(request, metadata)
    assert caught.value.field == field
    assert caught.value.reason in (Reason.INVALID_ARGUMENT, Reason.UNKNOWN_PARAMETER)
    assert len(str(caught.value)) < 400
