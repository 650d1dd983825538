"""The check of rows in short. `make rows` does it over thousands of positions of a real model."""

import pytest
import torch

from cluster.checks.rows import SIZES, differing
from verifier_service.build import load_target
from verifier_service.spec import VerifierSpec


@pytest.fixture(scope="module")
def tiny(tiny_path):
    return load_target(VerifierSpec(model=str(tiny_path), threads=1))


def test_every_row_is_that_of_single_rows(tiny):
    found = differing(tiny, 330)
    assert found == {**{f"{size} rows": [] for size in SIZES}, "pages of others": []}


@pytest.mark.model
def test_every_row_of_smollm2_is_that_of_single_rows():
    found = differing(load_target(VerifierSpec(model="smollm2-135m-instruct")), 70, (5, 17))
    assert found == {"5 rows": [], "17 rows": [], "pages of others": []}


@pytest.mark.parametrize(("size", "way"), [(9, "9 rows"), (32, "pages of others")])
def test_a_bit_that_differs_is_found(tiny, monkeypatch, size, way):
    forward = tiny.model.forward

    @torch.inference_mode()
    def off_by_a_bit(batch):
        [logits] = forward(batch)
        if len(logits) == size:
            logits[3, 7] = torch.nextafter(logits[3, 7], torch.tensor(torch.inf))
        return [logits]

    monkeypatch.setattr(tiny.model, "forward", off_by_a_bit)
    found = differing(tiny, 200, (2, 9))
    assert found.pop(way)[0] % 16 == 3
    assert not any(found.values())
