"""The start-up check says yes only where rows are bitwise the same in every batch."""

import pytest
import torch
from torch import nn

from cluster.checkpoints import load_model, resolve
from cluster.kernels import packed
from verifier_service.target import target
from verifier_service.target.invariance import rows_are_invariant
from verifier_service.target.target import TargetModel


class Perturbed:
    """A target that adds the least amount to the logits of the batches that `when` names."""

    def __init__(self, target, when):
        self._target = target
        self._when = when
        self.vocab_size, self.context, self.pool = target.vocab_size, target.context, target.pool
        self.adapters = target.adapters
        self.batches = 0

    @torch.inference_mode()
    def forward(self, batch):
        self.batches += 1
        logits = self._target.forward(batch)
        if self._when(batch, self.batches):
            # One value, by one unit in the last place.
            for rows in logits:
                if rows.numel():
                    rows[-1, 0] = torch.nextafter(rows[-1, 0], torch.tensor(torch.inf))
        return logits


def test_packed_rows_are_invariant(loaded):
    assert loaded.numerics.row_invariant
    assert rows_are_invariant(Perturbed(loaded.model, lambda batch, number: False))


FAULTS = {
    "single rows": lambda batch, number: len(batch[0].tokens) == 1,
    "blocks of two": lambda batch, number: len(batch[0].tokens) == 2,
    "blocks of seventeen": lambda batch, number: len(batch[0].tokens) == 17,
    "steps of twelve rows": lambda batch, number: len(batch) == 12,
    "steps of 257 rows": lambda batch, number: len(batch) == 257,
    "batches of two sequences": lambda batch, number: len(batch) == 2,
    "the whole prompt": lambda batch, number: len(batch[0].tokens) > 64,
    "after a prompt in chunks": lambda batch, number: len(batch[0].tokens) == 9 and number > 22,
    "after pages of others": lambda batch, number: batch[0].wanted == 10,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_last_bit_that_depends_on_the_batch_is_found(loaded, fault):
    assert not rows_are_invariant(Perturbed(loaded.model, FAULTS[fault]))


class RowCounting(nn.Module):
    """A linear whose rows depend on how many come along, as those of stock kernels may."""

    def __init__(self, weight, bias, integers):
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias) * (1 + 1e-7 * x.shape[-2])


def test_a_linear_that_is_not_invariant_is_found(tiny_path, monkeypatch):
    monkeypatch.setattr(packed, "PackedLinear", RowCounting)
    monkeypatch.setattr(target, "can_decode", lambda model: False)
    model = TargetModel(load_model(resolve(str(tiny_path)), "float32", "cpu"), "w", threads=1)
    assert not rows_are_invariant(model)


def test_keys_that_depend_on_the_batch_are_found(loaded, monkeypatch):
    """Logits may be right in the batch that spoils the cache, and wrong in the ones that read it."""
    forward = loaded.model.forward

    @torch.inference_mode()
    def spoiling(batch):
        logits = forward(batch)
        # The second chunk of the prompt, which ends beside another sequence.
        if len(batch) == 2:
            loaded.model.pool.keys[:, batch[1].cache.pages[4], :, :, 3] += 1e-3
        return logits

    monkeypatch.setattr(loaded.model, "forward", spoiling)
    assert not rows_are_invariant(loaded.model)


def test_keys_that_differ_in_blocks_are_found_by_those_that_take_them_over(loaded, monkeypatch):
    forward = loaded.model.forward

    @torch.inference_mode()
    def spoiling(batch):
        logits = forward(batch)
        # Of a sequence that only ever computes blocks of five.
        if len(batch[0].tokens) == 5 and batch[0].wanted == 0:
            loaded.model.pool.keys[:, batch[0].cache.pages[-1], :, :, 3] += 1e-3
        return logits

    monkeypatch.setattr(loaded.model, "forward", spoiling)
    assert not rows_are_invariant(loaded.model)
