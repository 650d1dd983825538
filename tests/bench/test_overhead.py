"""The overhead benchmark on a tiny model: every contestant answers alike, and the sink takes what is sent."""

import pytest

from cluster.bench.overhead.measuring import BARE, OBSERVING, Contestants, Cost, costs
from cluster.bench.overhead.otlp_sink import sinking
from cluster.bench.statistics import Ratio
from cluster.telemetry.setup import shutdown
from verifier_service.build import load_target
from verifier_service.spec import VerifierSpec


def test_every_kind_of_observation_is_measured(tiny_path):
    spec = VerifierSpec(model=str(tiny_path), threads=1, replay_share=0.0)
    loaded = load_target(spec)
    # Messages need no template here.
    loaded.tokenizer.chat_template = "{% for message in messages %}{{ message['content'][:20] }}{% endfor %}"
    try:
        with sinking() as collector:
            contestants = Contestants(loaded, spec, collector, 8)
            turns = [contestants.turn(number) for number in range(2)]
    finally:
        shutdown()
    assert all(set(turn) == {BARE, *(each.name for each in OBSERVING)} for turn in turns)
    found = costs(turns)
    assert [cost.name for cost in found] == [each.name for each in OBSERVING]
    assert all(0.0 < cost.throughput.median < 5.0 for cost in found)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (Ratio(0.99, 0.98, 1.0), "met"),
        (Ratio(0.9, 0.88, 0.92), "missed"),
        (Ratio(0.97, 0.9, 1.0), "not resolved"),
    ],
)
def test_a_cost_is_judged_by_its_interval(ratio, verdict):
    assert Cost("x", 0.97, ratio).verdict == verdict
