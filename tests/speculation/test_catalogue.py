"""Which laws are known, what they take, and what is said of those that are refused."""

import math

import pytest

from cluster.speculation.catalogue import LAWS, honest_alternative, parse
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION, STRICT_LAWS, Law


def test_strict_laws_take_no_parameters():
    for law in (NONE, COUPLED, REJECTION, BLOCK):
        assert parse(law.name) == law
        assert LAWS[law.name].lossless
        assert honest_alternative(law) == ""
        with pytest.raises(ValueError, match=f"{law.name} has no parameter 'ceiling'; its parameters: none"):
            parse(law.name, {"ceiling": 2.0})
    assert set(STRICT_LAWS) <= {name for name, law in LAWS.items() if law.lossless}
    assert [name for name, law in LAWS.items() if law.trees] == ["coupled"]
    assert [name for name, law in LAWS.items() if not law.sends_rows] == ["none", "coupled"]


def test_parameters_are_completed_and_put_in_one_order():
    assert parse("truncation:typical") == Law("truncation:typical", (("epsilon", 0.09), ("delta", 0.3)))
    one = parse("collaborative:interpolation", {"ceiling": 2, "lambda": 0.5})
    assert one == parse("collaborative:interpolation", {"lambda": 0.5, "ceiling": 2})
    assert one.params == (("lambda", 0.5), ("ceiling", 2.0))
    assert one.param("lambda") == 0.5
    assert one.param("max_distortion") is None


BAD = [
    ("wishful", {}, "unknown verification law 'wishful'; known: none, coupled"),
    ("truncation:min_p", {"min_p": 0.0}, "min_p must be above 0 and at most 1, got 0"),
    ("truncation:min_p", {"min_p": 1.1}, "min_p must be above 0 and at most 1"),
    ("truncation:typical", {"delta": 2.0}, "delta must be above 0 and at most 1"),
    ("truncation:min_p", {"beta": 0.1}, "has no parameter 'beta'; its parameters: min_p"),
    ("collaborative:lenience", {}, "needs lenience or max_distortion"),
    ("collaborative:lenience", {"ceiling": 2.0}, "needs lenience or max_distortion"),
    ("collaborative:lenience", {"lenience": 0.0}, "lenience must be above 0"),
    ("collaborative:lenience", {"lenience": math.nan}, "lenience must be above 0"),
    ("collaborative:interpolation", {"lambda": 0.5}, "needs a ceiling"),
    ("collaborative:interpolation", {"ceiling": 2.0}, "needs lambda or max_distortion"),
    ("collaborative:cactus", {"delta": 0.5}, "needs a ceiling"),
    ("collaborative:cactus", {"delta": 0.5, "ceiling": 0.9}, "ceiling must be at least 1, got 0.9"),
    ("collaborative:cactus", {"delta": 0.5, "ceiling": math.inf}, "ceiling must be at least 1, got inf"),
    ("collaborative:mentored", {"max_kl": -0.1}, "max_kl must be at least 0"),
    ("collaborative:mentored", {"max_distortion": 1.5}, "max_distortion must be at least 0 and at most 1"),
]


@pytest.mark.parametrize(("name", "params", "sentence"), BAD)
def test_what_is_refused_is_refused_in_one_sentence(name, params, sentence):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        parse(name, params)
    assert sentence in str(error.value)


@pytest.mark.parametrize("rule", ["lenience", "interpolation", "mentored", "cactus"])
def test_a_budget_stands_for_a_ceiling_and_for_a_degree(rule):
    assert parse(f"collaborative:{rule}", {"max_distortion": 0.1}).params == (("max_distortion", 0.1),)


def test_the_honest_alternative_is_named():
    assert "min_p=0.2" in honest_alternative(parse("truncation:min_p", {"min_p": 0.2}))
    typical = honest_alternative(parse("truncation:typical"))
    assert "eta_cutoff=0.09, eta sampling, serves the same truncation" in typical
    assert "typical_p" not in typical
    other = honest_alternative(parse("truncation:typical", {"epsilon": 0.09, "delta": 0.5}))
    assert "eta_cutoff=0.09" in other
    assert "the same truncation" not in other
    assert "rejection and block" in honest_alternative(parse("collaborative:mentored", {"max_kl": 0.1}))
