"""The long check of distributions: strict laws leave the target's, planted faults do not.

SmolLM2 drafts for itself, at its own temperature of 1 and, recorded truly, at others, so that the drafts'
distribution differs. 20,000 answers to one prompt are sampled under every strict law, and the law of their
first two tokens is compared with the target's by χ², Holm-corrected over everything that is tested. The
same test must notice each planted fault. Results are appended to a file, so that a stopped run goes on
where it was:

    python -m cluster.checks.distribution --out bench-results/distribution.jsonl --minutes 10
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.bench.encoding import chat
from cluster.bench.prompts import KINDS
from cluster.bench.resumable import Progress, Record
from cluster.checks.arguments import arguments
from cluster.checks.continuations import (
    FRESH,
    LENIENCE,
    RECORDED,
    RESIDUAL,
    Known,
    Sampler,
    Scenario,
    look,
)
from cluster.checks.goodness import Fit, fit, holm
from verifier_service.build import load_target
from verifier_service.spec import VerifierSpec

DRAWS = 20_000
# Its first token is spread over a dozen words and its second hangs on the first.
PROMPT = KINDS["story"]
# Seeds are fixed: a correct build passes or fails always, and fails one set of seeds in a hundred.
ALPHA = 0.01
# Printed as a bound: beyond it, tail probabilities run out of floating point.
_SMALLEST = 1e-300

_HONEST = (
    *(Scenario("coupled", t) for t in (1.0, 0.7)),
    *(Scenario(law, t) for law in ("rejection", "block") for t in (1.0, 0.7, 1.5)),
)
# With drafts at the target's temperature nothing is rejected, so faults are planted where p and q differ.
_FAULTY = (
    Scenario("rejection", 0.7, RECORDED),
    Scenario("block", 0.7, RECORDED),
    Scenario("rejection", 0.7, RESIDUAL),
    Scenario("block", 0.7, RESIDUAL),
    Scenario("rejection", 0.7, LENIENCE),
    Scenario("coupled", 0.7, FRESH),
)
SCENARIOS = (*_HONEST, *_FAULTY)


@dataclass(frozen=True, slots=True)
class Finding:
    """adjusted: the p-value after Holm's correction over all findings."""

    scenario: Scenario
    fit: Fit
    adjusted: float

    @property
    def as_expected(self) -> bool:
        """Whether an honest scenario was not rejected, or a faulty one was."""
        return (self.adjusted < ALPHA) == bool(self.scenario.fault)


def sample(known: Known, scenario: Scenario, draws: int, first_seed: int = 0) -> Fit:
    """χ² of that many continuations, one for each seed."""
    sampler = Sampler(known, scenario)
    return fit([sampler.pair(first_seed + i) for i in range(draws)], known.law())


def findings(fits: dict[Scenario, Fit]) -> list[Finding]:
    """All fits judged together."""
    adjusted = holm([each.p_value for each in fits.values()])
    return [Finding(*fitted, p) for fitted, p in zip(fits.items(), adjusted, strict=True)]


class Checker:
    """Loads the model and the rows when they are first needed."""

    def __init__(self, model: str, draws: int) -> None:
        self._draws = draws
        loaded = load_target(VerifierSpec(model=model))
        self._known = look(loaded.model, chat(loaded, PROMPT), draws)

    def check(self, scenario: Scenario) -> Fit:
        # Seeds of their own, so that the tests are independent, as one fault is of another.
        return sample(self._known, scenario, self._draws, self._draws * SCENARIOS.index(scenario))


def main(given: Sequence[str] | None = None) -> int:
    """Runs what is left for at most --minutes. Returns 1 if all was tested and something is not as it
    should be, else 0."""
    parser = arguments(__doc__, Path("bench-results/distribution.jsonl"))
    parser.add_argument("--draws", type=int, default=DRAWS)
    options = parser.parse_args(given)
    setting = {"model": options.model, "draws": options.draws}
    progress: Progress[Scenario] = Progress(options.out, "scenario", setting)
    checker: Checker | None = None

    def check(scenario: Scenario) -> Record:
        nonlocal checker
        checker = checker or Checker(options.model, options.draws)
        return {"fit": asdict(checker.check(scenario))}

    progress.run(SCENARIOS, options.minutes, check)
    done = progress.records
    tested = [scenario for scenario in SCENARIOS if scenario.key in done]
    judged = findings({scenario: Fit(**done[scenario.key]["fit"]) for scenario in tested})
    for finding in judged:
        _tell(finding)
    sys.stdout.write(
        f"{len(tested)} of {len(SCENARIOS)} tested, {options.draws} continuations each {progress.spent}\n"
    )
    whole = len(tested) == len(SCENARIOS)
    return 1 if whole and not all(finding.as_expected for finding in judged) else 0


def _tell(finding: Finding) -> None:
    verdict = "rejected" if finding.adjusted < ALPHA else "not rejected"
    marked = verdict if finding.as_expected else f"{verdict.upper()}, WHICH IS WRONG"
    scenario, found = finding.scenario, finding.fit
    p = f"= {finding.adjusted:.2g}" if finding.adjusted >= _SMALLEST else f"< {_SMALLEST:g}"
    sys.stdout.write(
        f"{scenario.law:<9}  drafts at T={scenario.drafter:<3g}  {scenario.fault or 'honest':<32}"
        f"χ²({found.bins - 1}) = {found.chi2:8.1f}  p {p:<8}  {marked}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
