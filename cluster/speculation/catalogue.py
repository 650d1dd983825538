"""Every verification law that is known: its parameters, what it promises, what it needs on the wire.

A law can be known before a deployment serves it: `law.STRICT_LAWS` and the allow-list say that.
Mathematics and sources: docs/laws.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from cluster.speculation.law import Law


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number in [low, high], or (low, high] if `above`; without a default it may be left out."""

    name: str
    low: float
    high: float
    above: bool = False
    default: float | None = None

    def check(self, law: str, value: float) -> None:
        """Raises ValueError, naming law and parameter."""
        # Written so that NaN fails.
        if not (self.low < value if self.above else self.low <= value) or not value <= self.high:
            bound = "above" if self.above else "at least"
            most = f" and at most {self.high:g}" if self.high < _LARGEST else ""
            raise ValueError(f"{law}: {self.name} must be {bound} {self.low:g}{most}, got {value:g}")


@dataclass(frozen=True, slots=True)
class KnownLaw:
    """sends_rows: the drafter sends each token's sparse proposal; trees: drafts may branch.

    degree: of a collaborative law, the parameter that says how far it relaxes; capped: whether it has a
    ceiling on out / p only if it is given one.
    """

    name: str
    lossless: bool
    sends_rows: bool
    trees: bool = False
    parameters: tuple[Parameter, ...] = ()
    degree: str = ""
    capped: bool = False


# The largest finite double: a parameter without an upper bound is still finite.
_LARGEST = math.nextafter(math.inf, 0.0)
_CEILING = Parameter("ceiling", 1.0, _LARGEST)
_BUDGET = Parameter("max_distortion", 0.0, 1.0)


def _collaborative(rule: str, degree: Parameter, capped: bool) -> KnownLaw:
    parameters = (degree, _CEILING, _BUDGET)
    name = f"collaborative:{rule}"
    return KnownLaw(name, False, sends_rows=True, parameters=parameters, degree=degree.name, capped=capped)


LAWS: dict[str, KnownLaw] = {
    law.name: law
    for law in (
        KnownLaw("none", lossless=True, sends_rows=False),
        KnownLaw("coupled", lossless=True, sends_rows=False, trees=True),
        KnownLaw("rejection", lossless=True, sends_rows=True),
        KnownLaw("block", lossless=True, sends_rows=True),
        KnownLaw(
            "truncation:min_p",
            lossless=False,
            sends_rows=True,
            parameters=(Parameter("min_p", 0.0, 1.0, above=True, default=0.1),),
        ),
        KnownLaw(
            "truncation:typical",
            lossless=False,
            sends_rows=True,
            parameters=(
                Parameter("epsilon", 0.0, 1.0, above=True, default=0.09),
                # Up to 1, the most probable token is always in the set.
                Parameter("delta", 0.0, 1.0, above=True, default=0.3),
            ),
        ),
        _collaborative("lenience", Parameter("lenience", 0.0, 1.0, above=True), capped=False),
        _collaborative("interpolation", Parameter("lambda", 0.0, 1.0), capped=True),
        _collaborative("mentored", Parameter("max_kl", 0.0, _LARGEST), capped=False),
        _collaborative("cactus", Parameter("delta", 0.0, _LARGEST), capped=True),
    )
}


def parse(name: str, params: Mapping[str, float] | None = None) -> Law:
    """The law of a request, its parameters checked, completed by defaults and in the catalogue's order.

    Raises ValueError, in one sentence, for a name that is not known, a parameter that the law does not take
    or that is out of range, and a collaborative law that says neither how far it may relax nor, where it has
    no ceiling of its own, how far a token's probability may rise.
    """
    given = dict(params or {})
    known = LAWS.get(name)
    if known is None:
        raise ValueError(f"unknown verification law {name!r}; known: {', '.join(LAWS)}")
    names = [parameter.name for parameter in known.parameters]
    for each in given:
        if each not in names:
            takes = ", ".join(names) or "none"
            raise ValueError(f"{name} has no parameter {each!r}; its parameters: {takes}")
    for parameter in known.parameters:
        if parameter.default is not None:
            given.setdefault(parameter.name, parameter.default)
        if parameter.name in given:
            parameter.check(name, given[parameter.name])
    if known.degree and not {known.degree, "max_distortion"} & given.keys():
        raise ValueError(f"{name} needs {known.degree} or max_distortion, to say how far it may relax")
    if known.capped and not {"ceiling", "max_distortion"} & given.keys():
        raise ValueError(
            f"{name} needs a ceiling on out(x)/p(x), or max_distortion: by itself it bounds neither"
        )
    return Law(name, tuple((each, float(given[each])) for each in names if each in given))


@cache
def checked(law: Law) -> Law:
    """The same law as `parse` gives it; raises ValueError as that does."""
    return parse(law.name, dict(law.params))


def honest_alternative(law: Law) -> str:
    """For a lossy law that is refused: the lossless way to what it is used for, in one sentence."""
    known = checked(law)
    if known.name == "truncation:min_p":
        return (
            f"A strict law with the sampling parameter min_p={known.param('min_p'):g} serves the same "
            "truncation without its distortion."
        )
    if known.name == "truncation:typical":
        epsilon, delta = known.param("epsilon") or 0.0, known.param("delta") or 0.0
        same = math.isclose(delta, math.sqrt(epsilon), rel_tol=1e-6)
        kind = "the same truncation" if same else "the truncation with delta = √epsilon"
        return (
            f"A strict law with the sampling parameter eta_cutoff={epsilon:g}, eta sampling, serves {kind} "
            "without its distortion."
        )
    if not LAWS[known.name].lossless:
        return "The strict laws rejection and block take the same drafts without distortion."
    return ""
