"""The joint law of two winners under one noise, against its marginals and against the shipped noise."""

import random

import pytest
import torch

from cluster.lab.coupling import joint
from cluster.lab.world import row_of
from cluster.speculation.race import GumbelField
from tests.speculation.helpers import ALPHA, p_value

PAIRS = [
    ((0.6, 0.3, 0.1), (0.3, 0.3, 0.4)),
    ((0.5, 0.5, 0.0), (0.0, 0.5, 0.5)),
    ((1.0, 0.0, 0.0), (0.2, 0.3, 0.5)),
    ((0.25, 0.75), (0.75, 0.25)),
    *[
        (row_of(random.Random(seed), 4, 0, 2.0), row_of(random.Random(-seed - 1), 4, 1, 1.0))
        for seed in range(6)
    ],
]


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_each_winner_has_its_own_law(p, q):
    table = torch.tensor(joint(p, q), dtype=torch.float64)
    torch.testing.assert_close(table.sum(1), torch.tensor(p, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(table.sum(0), torch.tensor(q, dtype=torch.float64), rtol=0, atol=1e-14)
    assert float(table.min()) >= 0.0


def test_equal_rows_always_agree():
    table = torch.tensor(joint((0.2, 0.3, 0.5), (0.2, 0.3, 0.5)))
    torch.testing.assert_close(table, torch.diag(torch.tensor([0.2, 0.3, 0.5])))


def test_the_shipped_noise_has_this_joint_law():
    p, q = PAIRS[0]
    noise = torch.stack([GumbelField(5).gumbel(position, 3) for position in range(8000)])
    y = (noise + torch.tensor(p, dtype=torch.float64).log()).argmax(-1)
    x = (noise + torch.tensor(q, dtype=torch.float64).log()).argmax(-1)
    law = torch.tensor(joint(p, q), dtype=torch.float64).flatten()
    assert p_value((3 * y + x).tolist(), law) > ALPHA
    independent = torch.outer(torch.tensor(p), torch.tensor(q)).double().flatten()
    assert p_value((3 * y + x).tolist(), independent) < ALPHA
