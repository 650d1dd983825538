"""What lossy laws emit, computed exactly at positions of real text.

At a position the target's row p and the drafter's truncated row q decide the output law in closed form, so
distances need no sampling; a sampled check through the shipped `verify` stands beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cluster.bench.lossy.rounds import Round, acceptance_length
from cluster.bench.statistics import Mean, mean_interval
from cluster.speculation.catalogue import parse
from cluster.speculation.distortion import Distortion
from cluster.speculation.law import BLOCK, REJECTION, Law
from cluster.speculation.messages import DraftBlock
from cluster.speculation.noise import DraftField, Noise, Purpose, derive_key
from cluster.speculation.proposal import SparseRow, pack, truncate
from verifier_service.verification import verify
from verifier_service.verification.collaborative import output_law
from verifier_service.verification.distortion import of_position
from verifier_service.verification.kernel import positions
from verifier_service.verification.truncation import truncated

TRUNCATIONS = (parse("truncation:min_p", {"min_p": 0.1}), parse("truncation:typical"))

# How far each collaborative law relaxes, from little to much. Interpolation and cactus need a ceiling.
CURVES: dict[str, tuple[dict[str, float], ...]] = {
    "collaborative:lenience": tuple({"lenience": x} for x in (0.9, 0.7, 0.5, 0.3, 0.1)),
    "collaborative:interpolation": tuple({"lambda": x, "ceiling": 4.0} for x in (0.9, 0.7, 0.5, 0.3, 0.0)),
    "collaborative:mentored": tuple({"max_kl": x} for x in (0.003, 0.03, 0.1, 0.3, 1.0)),
    "collaborative:cactus": tuple({"delta": x, "ceiling": 4.0} for x in (1e-4, 1e-3, 0.003, 0.01, 0.03)),
}


_NOTHING = Mean(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Place:
    """One position of a text: the target's row p, float32 [V], and the proposal q that is sent."""

    p: Tensor
    q: SparseRow


@dataclass(frozen=True, slots=True)
class Pitfall:
    """A truncation law and the strict law at the same truncation set A, over the positions.

    tv_lossy, tv_strict: exact total variation of what each emits from the truly truncated target p_A;
    kept_lossy, kept_strict: the probability that a draft is kept; sampled_*: the same distances of samples
    from verify, the mean of a few positions; there: tv_lossy at these; noise: what as many samples from p_A
    itself show.
    """

    law: str
    drafter: str
    tv_lossy: Mean
    tv_strict: Mean
    overshoot: float
    kept_lossy: float
    kept_strict: float
    sampled_lossy: float
    sampled_strict: float
    there: float
    noise: float


@dataclass(frozen=True, slots=True)
class Point:
    """A collaborative law at one setting.

    tv, kl: mean exact TV(out, p) and KL(out ‖ p), in nats, of a drafted token; length: measured tokens of a
    round.
    """

    law: str
    drafter: str
    params: dict[str, float]
    tv: Mean
    kl: Mean
    overshoot: float
    length: Mean


def places(p: Tensor, q: Tensor) -> list[Place]:
    """p, q: the target's and the drafter's rows, [positions, V] each; q is truncated as it is sent."""
    return [Place(row, truncate(drafted)) for row, drafted in zip(p, q, strict=True)]


def pitfall(law: Law, drafter: str, where: Sequence[Place], checked: int, draws: int) -> Pitfall:
    """Over all positions exactly, and at `checked` of them, evenly spaced, from `draws` verdicts each."""
    tv_lossy, tv_strict, kept_lossy, kept_strict, overshoot = [], [], [], [], 1.0
    for place in where:
        inside, lossy, strict = _laws(law, place)
        tv_lossy.append(_tv(lossy, inside))
        tv_strict.append(_tv(strict, inside))
        q = _dense(place)
        kept_lossy.append(float(q[inside > 0.0].sum()))
        kept_strict.append(float(torch.minimum(q, inside).sum()))
        overshoot = max(overshoot, float((lossy[inside > 0.0] / inside[inside > 0.0]).max()))
    spaced = [k * len(where) // checked for k in range(checked)]
    samples = [_sampled(law, where[k], draws) for k in spaced]
    by_lossy, by_strict, by_chance = (float(np.mean(column)) for column in zip(*samples, strict=True))
    return Pitfall(
        law.name,
        drafter,
        mean_interval(tv_lossy),
        mean_interval(tv_strict),
        overshoot,
        float(np.mean(kept_lossy)),
        float(np.mean(kept_strict)),
        by_lossy,
        by_strict,
        float(np.mean([tv_lossy[k] for k in spaced])),
        by_chance,
    )


def curve(drafter: str, where: Sequence[Place], blocks: Sequence[Round]) -> Iterator[Point]:
    """The strict laws, then every law of CURVES at every setting."""
    for law in (REJECTION, BLOCK):
        yield Point(law.name, drafter, {}, _NOTHING, _NOTHING, 1.0, acceptance_length(law, blocks))
    for name, settings in CURVES.items():
        for params in settings:
            law = parse(name, params)
            spent = [_spent(law, place) for place in where]
            yield Point(
                name,
                drafter,
                dict(law.params),
                mean_interval([each.tv for each in spent]),
                mean_interval([each.kl for each in spent]),
                max(each.overshoot for each in spent),
                acceptance_length(law, blocks),
            )


def _spent(law: Law, place: Place) -> Distortion:
    position = next(positions(place.p.expand(2, -1), _block(place.q, place.q.ids[0])))
    return of_position(position, output_law(law, position))


def _laws(law: Law, place: Place) -> tuple[Tensor, Tensor, Tensor]:
    """p_A, what the truncation law emits, and what rejection on p_A emits: float64 [V] each."""
    kept = truncated(law, place.p, float(place.p.double().sum()))
    inside = kept / kept.sum()
    q = _dense(place)
    on = torch.where(inside > 0.0, q, 0.0)
    lossy = on + (1.0 - on.sum()) * inside
    accepted = torch.minimum(q, inside)
    rest = (inside - q).clamp(min=0.0)
    strict = accepted + (1.0 - accepted.sum()) * rest / rest.sum() if bool(rest.any()) else accepted
    return inside, lossy, strict


def _sampled(law: Law, place: Place, draws: int) -> tuple[float, float, float]:
    """TV from p_A of tokens that the truncation law, rejection on p_A and p_A itself emit."""
    inside, _, _ = _laws(law, place)
    counts = [torch.zeros_like(inside) for _ in range(2)]
    rows = (place.p.expand(2, -1), inside.expand(2, -1))
    for seed in range(draws):
        draft = DraftField(derive_key(seed, Purpose.DRAFT), 0).draw(0, place.q)
        block = _block(place.q, draft)
        for count, target, each in zip(counts, rows, (law, REJECTION), strict=True):
            count[verify(each, target, block, Noise(seed, 0)).tokens[0]] += 1
    generator = np.random.default_rng(0)
    itself = torch.from_numpy(generator.multinomial(draws, (inside / inside.sum()).numpy()))
    lossy, strict, chance = (_tv(count.double() / draws, inside) for count in (*counts, itself))
    return lossy, strict, chance


def _block(q: SparseRow, token: int) -> DraftBlock:
    return DraftBlock((token,), (max(q.probs),), proposal=pack([q]))


def _dense(place: Place) -> Tensor:
    q = torch.zeros(place.p.shape, dtype=torch.float64)
    q[list(place.q.ids)] = torch.tensor(place.q.probs, dtype=torch.float64)
    return q


def _tv(left: Tensor, right: Tensor) -> float:
    return 0.5 * float((left - right).abs().sum())
