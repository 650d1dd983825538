"""The comparison of connections with NetworkPolicies that the rehearsal rests on."""

from tests.helm.chart import rendered_example
from tests.helm.rehearsal import closed

ROLES = {"head": "head", "v": "verifier", "d": "drafter"}


def test_what_pods_need_is_let_through_and_nothing_else():
    text = rendered_example("cpu")
    needed = {("v", "d", 7400), ("v", "head", 6379), ("head", "d", 10144), ("d", "head", 10010)}
    assert closed(text, needed, ROLES) == set()
    stopped = {("d", "v", 7400), ("head", "d", 7415), ("v", "d", 7416), ("v", "head", 10001), ("d", "v", 22)}
    assert closed(text, stopped, ROLES) == stopped
