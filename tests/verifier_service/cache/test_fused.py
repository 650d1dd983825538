"""Rows that drafters read: fused with others' or when somebody reads, the same bits either way."""

import itertools

import pytest
import torch

from cluster.kernels.attention import PAGE
from verifier_service.cache.fused import FusedRows

CPU = torch.device("cpu")


class Doubling:
    """Notes how many rows it is given at a time."""

    width, dtype = 2, torch.float32

    def __init__(self, together):
        self.together = together
        self.calls = []

    def fuse(self, features):
        self.calls.append(len(features))
        return 2 * features


def at(*places):
    pages = torch.tensor([place // PAGE for place in places])
    return pages, torch.tensor([place % PAGE for place in places])


def features(*values):
    return torch.tensor([[value, -value] for value in values])


def read(rows, *places):
    return [value / 2 for value in rows.of(*at(*places))[:, 0].tolist()]


def test_rows_wait_for_company_or_for_a_reader():
    fuser = Doubling(together=4)
    rows = FusedRows(3, fuser, CPU)
    for place in range(3):
        rows.put(*at(place), features(float(place)))
    assert fuser.calls == []
    rows.put(*at(3, 4), features(3.0, 4.0))
    assert fuser.calls == [5]
    rows.put(*at(5), features(5.0))
    assert read(rows, 5, 0, 3) == [5.0, 0.0, 3.0]
    assert fuser.calls == [5, 1]
    # Nothing is left to do.
    read(rows, 1)
    assert fuser.calls == [5, 1]


@pytest.mark.parametrize("together", [1, 3, 100])
def test_what_was_put_last_holds_however_late_it_is_fused(together):
    """As after a draft that was wrong, whose place the next token takes."""
    rows = FusedRows(2, Doubling(together), CPU)
    numbers = itertools.count(1)
    truth = {}
    for step in range(12):
        places = [step, step + 1, step + 2]
        values = [float(next(numbers)) for _ in places]
        rows.put(*at(*places), features(*values))
        truth.update(zip(places, values, strict=True))
    assert read(rows, *truth) == list(truth.values())


def test_rows_move_after_what_was_put_before():
    rows = FusedRows(2, Doubling(together=100), CPU)
    rows.put(*at(0, 1, 2, 3), features(10.0, 11.0, 12.0, 13.0))
    # All are read before any is written.
    rows.move((0, 0), (2, 3), (0, 0), (1, 2))
    assert read(rows, 0, 1, 2) == [10.0, 12.0, 13.0]
