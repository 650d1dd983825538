"""The ragged forward against the stock model, and bitwise against itself."""

import pytest
import torch
from torch import nn

from cluster.checkpoints import load_model, resolve
from cluster.checkpoints.tiny import build_tiny
from verifier_service import packing
from verifier_service.invariance import rows_are_invariant
from verifier_service.kv_cache import SequenceCache
from verifier_service.target import Rows, TargetModel

PROMPT = [(5 * i * i + 1) % 500 for i in range(150)]
NEXT = [3, 99, 7, 450, 12]


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_ragged_rows_are_the_stock_models(tmp_path, family):
    path = build_tiny(tmp_path / family, seed=2, family=family)
    stock = load_model(resolve(str(path)), "float32", "cpu")
    with torch.inference_mode():
        expected = stock(torch.tensor([PROMPT + NEXT])).logits[0, len(PROMPT) - 1 :]
        other = stock(torch.tensor([PROMPT[:40]])).logits[0, -1:]
    target = TargetModel(load_model(resolve(str(path)), "float32", "cpu"), "w", threads=1)
    cache, beside = SequenceCache(200), SequenceCache(200)
    first, second = target.forward(
        [Rows(cache, PROMPT, 0, len(PROMPT), 1), Rows(beside, PROMPT[:40], 0, 40, 1)]
    )
    [rest] = target.forward([Rows(cache, NEXT, len(PROMPT), len(PROMPT), len(NEXT))])
    torch.testing.assert_close(torch.cat([first, rest]), expected, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(second, other, atol=2e-4, rtol=1e-4)


def test_a_rejected_draft_leaves_no_trace(loaded):
    clean, tried = SequenceCache(200), SequenceCache(200)
    for cache in (clean, tried):
        loaded.model.forward([Rows(cache, PROMPT, 0, len(PROMPT), 1)])
    loaded.model.forward([Rows(tried, [1, 2, 3, 4], len(PROMPT), len(PROMPT), 4)])
    [expected] = loaded.model.forward([Rows(clean, NEXT, len(PROMPT), len(PROMPT), len(NEXT))])
    [after] = loaded.model.forward([Rows(tried, NEXT, len(PROMPT), len(PROMPT), len(NEXT))])
    assert torch.equal(after, expected)


def test_rows_are_bitwise_invariant_and_a_stock_model_is_caught(loaded, tiny_path, monkeypatch):
    assert loaded.numerics.row_invariant
    assert rows_are_invariant(loaded.model)

    class Leaky(nn.Module):
        """A linear whose rows depend on how many there are: what the check is there to find."""

        def __init__(self, weight, bias):
            super().__init__()
            self.weight, self.bias = weight, bias

        def forward(self, x):
            return nn.functional.linear(x, self.weight, self.bias) * (1 + 1e-7 * x.shape[-2])

    monkeypatch.setattr(packing, "PackedLinear", Leaky)
    leaky = TargetModel(load_model(resolve(str(tiny_path)), "float32", "cpu"), "w", threads=1)
    assert not rows_are_invariant(leaky)
