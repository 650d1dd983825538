"""The distribution that `verify` samples from, over 100,000 rounds, and faults that must be caught.

The keyed noise of all rounds is computed in one go, and a stand-in for `Noise` hands its winners to `verify`,
once for each combination of drafts and winners.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch

from cluster.speculation.law import COUPLED, NONE
from cluster.speculation.messages import DraftBlock
from cluster.speculation.noise import Noise, Purpose, derive_key
from cluster.speculation.race import GumbelField, _Rows
from tests.speculation.helpers import ALPHA, p_value
from verifier_service.verification import verify

ROUNDS = 100_000
VOCAB, BLOCK = 3, 2
TOKENS = BLOCK + 1
SEED = 5


def chain(*prefix):
    """A fixed next-token row of the target that depends on the whole prefix."""
    generator = torch.Generator().manual_seed(sum(5**i * (token + 1) for i, token in enumerate(prefix)))
    return torch.softmax(torch.randn(VOCAB, generator=generator, dtype=torch.float64), -1)


# The target's and a drafter's rows, for every prefix of 0, 1 and 2 tokens.
TARGET = [
    chain(),
    torch.stack([chain(a) for a in range(VOCAB)]),
    torch.stack([torch.stack([chain(a, b) for b in range(VOCAB)]) for a in range(VOCAB)]),
]
DRAFTER = [torch.softmax(0.5 * rows.log() + 0.3 * rows.flip(-1), -1) for rows in TARGET[:BLOCK]]
# The exact law of the three tokens, with token 0 the most significant digit.
LAW = (TARGET[0][:, None, None] * TARGET[1][:, :, None] * TARGET[2]).flatten()


def gumbel_noise(seed, rounds=ROUNDS):
    """G of positions 0.., three for each round: [rounds, 3, V], what Noise(seed, 3 * round) gives."""
    field = GumbelField(derive_key(seed, Purpose.GUMBEL))
    count = rounds * TOKENS
    rows = _Rows.of([field] * count, range(count))
    race = rows.race(np.arange(count), np.zeros(count, dtype=np.int64), rows.heads(1)[:, 0])
    return -torch.from_numpy(race[:, :VOCAB]).log().view(rounds, TOKENS, VOCAB)


@dataclass(frozen=True)
class Winners:
    """Stands for GumbelField: position k has one winner, and only for the row that belongs there."""

    rows: torch.Tensor
    choices: tuple[int, ...]

    def winner(self, position, row):
        assert row.data_ptr() == self.rows[position].data_ptr()
        return self.choices[position]


@dataclass(frozen=True)
class StubNoise:
    field: Winners
    base: int = 0


class Rounds:
    """Rounds with their noise: winners of every row, and blocks drafted in a given way."""

    def __init__(self, noise):
        self.best = [
            (noise[:, 0] + TARGET[0].log()).argmax(-1),
            (noise[:, None, 1] + TARGET[1].log()).argmax(-1),
            (noise[:, None, None, 2] + TARGET[2].log()).argmax(-1),
        ]
        self.noise = noise

    def emitted(self, drafts, decide):
        """The three tokens of each round, as one number; those a verdict leaves out decoded plainly."""
        firsts, seconds = (d.tolist() for d in drafts)
        best0, best1, best2 = (best.tolist() for best in self.best)
        outcomes = []
        for index, (a, b) in enumerate(zip(firsts, seconds, strict=True)):
            choices = (best0[index], best1[index][a], best2[index][a][b])
            out = list(decide(index, (a, b), choices))
            if len(out) == 1:
                out.append(best1[index][out[0]])
            if len(out) == 2:
                out.append(best2[index][out[0]][out[1]])
            outcomes.append((out[0] * VOCAB + out[1]) * VOCAB + out[2])
        return outcomes


ROWS = [[torch.stack([TARGET[0], TARGET[1][a], TARGET[2][a, b]]) for b in range(VOCAB)] for a in range(VOCAB)]


@cache
def verified(drafts, choices):
    rows = ROWS[drafts[0]][drafts[1]]
    return verify(COUPLED, rows, DraftBlock(drafts, (1.0, 1.0)), StubNoise(Winners(rows, choices))).tokens


@pytest.fixture(scope="module")
def rounds():
    return Rounds(gumbel_noise(SEED))


def sharing(rounds):
    """Drafts of another model with the verifier's noise."""
    first = (rounds.noise[:, 0] + DRAFTER[0].log()).argmax(-1)
    return first, (rounds.noise[:, 1] + DRAFTER[1][first].log()).argmax(-1)


def own_noise(rounds):
    """Drafts sampled with noise of the drafter's own."""
    other = Rounds(gumbel_noise(SEED + 1))
    return sharing(other)


def constant(rounds):
    return torch.zeros(ROUNDS, dtype=torch.long), torch.ones(ROUNDS, dtype=torch.long)


def informed(rounds):
    """The most adverse: right where the target's winner is 0, wrong elsewhere."""
    first = torch.where(rounds.best[0] == 0, 0, (rounds.best[0] + 1) % VOCAB)
    return first, rounds.best[1].gather(1, first[:, None])[:, 0]


DRAFTERS = [sharing, own_noise, constant, informed]


@cache
def verified_plain(choice):
    rows = ROWS[0][0][:1]
    return verify(NONE, rows, DraftBlock(), StubNoise(Winners(rows, (choice,)))).tokens


def coupled(index, drafts, choices):
    return verified(drafts, choices)


def test_the_noise_computed_in_one_go_is_the_keyed_noise(rounds):
    for index in (0, 1, 777, ROUNDS - 1):
        noise = Noise(SEED, TOKENS * index)
        for k in range(TOKENS):
            torch.testing.assert_close(rounds.noise[index, k], noise.gumbel(noise.base + k, VOCAB))
    firsts, seconds = sharing(rounds)
    for index in range(0, ROUNDS, ROUNDS // 50):
        drafts = (int(firsts[index]), int(seconds[index]))
        rows = ROWS[drafts[0]][drafts[1]]
        real = verify(COUPLED, rows, DraftBlock(drafts, (1.0, 1.0)), Noise(SEED, TOKENS * index))
        best = [rounds.best[0][index], rounds.best[1][index, drafts[0]], rounds.best[2][(index, *drafts)]]
        assert list(real.tokens) == [int(token) for token in best[: len(real.tokens)]]


def test_plain_decoding_has_the_targets_law(rounds):
    def plain(index, drafts, choices):
        return verified_plain(choices[0])

    assert p_value(rounds.emitted(constant(rounds), plain), LAW) > ALPHA


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_coupled_has_the_targets_law_whoever_drafts(rounds, drafter):
    assert p_value(rounds.emitted(drafter(rounds), coupled), LAW) > ALPHA


@pytest.mark.parametrize("drafter", [sharing, own_noise, informed])
def test_fresh_noise_for_the_correction_is_caught(rounds, drafter):
    fresh = Rounds(gumbel_noise(SEED + 2))
    fresh_best = [best.tolist() for best in fresh.best]

    def faulty(index, drafts, choices):
        tokens = coupled(index, drafts, choices)
        accepted = len(tokens) - 1
        if accepted == 0:
            return (fresh_best[0][index],)
        if accepted == 1:
            return (tokens[0], fresh_best[1][index][drafts[0]])
        return tokens

    assert p_value(rounds.emitted(drafter(rounds), faulty), LAW) < ALPHA


@pytest.mark.parametrize("drafter", [sharing, constant])
def test_noise_used_again_for_the_bonus_is_caught(rounds, drafter):
    again = (rounds.noise[:, None, None, 1] + TARGET[2].log()).argmax(-1).tolist()

    def faulty(index, drafts, choices):
        tokens = coupled(index, drafts, choices)
        if len(tokens) == TOKENS:
            return (*tokens[:2], again[index][drafts[0]][drafts[1]])
        return tokens

    assert p_value(rounds.emitted(drafter(rounds), faulty), LAW) < ALPHA


def test_keeping_a_draft_for_its_probability_alone_is_caught(rounds):
    likely = (TARGET[0] > 0.4).tolist()

    def faulty(index, drafts, choices):
        return drafts[:1] if likely[drafts[0]] else coupled(index, drafts, choices)

    assert p_value(rounds.emitted(own_noise(rounds), faulty), LAW) < ALPHA


PAIRS = [
    ([0.6, 0.3, 0.1], [0.3, 0.3, 0.4]),
    ([0.5, 0.25, 0.25], [0.5, 0.25, 0.25]),
    ([0.9, 0.05, 0.05], [0.05, 0.05, 0.9]),
    ([0.5, 0.5, 0.0], [0.0, 0.5, 0.5]),
]


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_drafts_that_share_the_noise_are_accepted_as_often_as_published(rounds, p, q):
    """Daliri, Musco, Suresh: sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) >= (1 - TV) / (1 + TV)."""
    target, drafter = (torch.tensor(row, dtype=torch.float64) for row in (p, q))
    both = (target > 0) & (drafter > 0)
    ratios = torch.maximum(target[None] / target[both][:, None], drafter[None] / drafter[both][:, None])
    expected = float((1 / ratios.sum(-1)).sum())
    distance = float((target - drafter).abs().sum()) / 2
    assert expected >= (1 - distance) / (1 + distance) - 1e-12

    noise = rounds.noise[:, 0]
    drafts = (noise + drafter.log()).argmax(-1)
    winners = (noise + target.log()).argmax(-1)
    matches = float((drafts == winners).double().mean())
    # Five standard deviations of a mean of that many draws.
    assert abs(matches - expected) < 5 * 0.5 / ROUNDS**0.5

    # `verify` accepts exactly the drafts that match.
    field = GumbelField(derive_key(SEED, Purpose.GUMBEL))
    rows = torch.stack([target, target])
    for index in range(100):
        draft = field.winner(TOKENS * index, drafter)
        assert draft == int(drafts[index])
        verdict = verify(COUPLED, rows, DraftBlock((draft,), (1.0,)), Noise(SEED, TOKENS * index))
        assert verdict.accepted == int(drafts[index] == winners[index])


def test_drafts_with_other_noise_are_accepted_less_often(rounds):
    target, drafter = (torch.tensor(row, dtype=torch.float64) for row in PAIRS[0])
    winners = (rounds.noise[:, 0] + target.log()).argmax(-1)
    other = gumbel_noise(SEED + 1)[:, 0]
    drafts = (other + drafter.log()).argmax(-1)
    matches = float((drafts == winners).double().mean())
    assert abs(matches - float((target * drafter).sum())) < 5 * 0.5 / ROUNDS**0.5
