"""The lean decoder: which models it takes, and that its logits are the stock model's."""

import copy

import pytest
import torch

from tests.verifier_service.test_target import FAMILIES, GROUPED, NEXT, PROMPT, random_model
from verifier_service import decoder
from verifier_service.decoder import Decoder, _by_rows, can_decode
from verifier_service.kv_cache import SequenceCache
from verifier_service.target import Rows, TargetModel

LEAN = {
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": None},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": GROUPED,
}
SCALED = {"rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, "low_freq_factor": 1.0}
SCALED |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def randomise_norms_and_biases(model):
    """What is 1 or 0 in a fresh model could be left out unnoticed."""
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, 1.0, 0.2)


def kernels(target):
    return target.numerics(row_invariant=True).kernels


@pytest.mark.parametrize("family", LEAN)
def test_logits_are_the_stock_models(family):
    stock = random_model(family, **LEAN[family])
    randomise_norms_and_biases(stock)
    target = TargetModel(copy.deepcopy(stock), "w", threads=1)
    assert kernels(target).endswith("+lean")
    with torch.inference_mode():
        expected = stock(torch.tensor([PROMPT + NEXT])).logits[0]
    cache, length = SequenceCache(200), len(PROMPT)
    [start] = target.forward([Rows(cache, PROMPT, 0, length, length)])
    [rest] = target.forward([Rows(cache, NEXT, length, length, len(NEXT))])
    torch.testing.assert_close(torch.cat([start, rest]), expected, atol=1e-4, rtol=1e-4)


def test_scaled_positions_are_the_stock_models():
    stock = random_model("llama", **GROUPED, rope_parameters=SCALED)
    target = TargetModel(copy.deepcopy(stock), "w", threads=1)
    assert kernels(target).endswith("+lean")
    with torch.inference_mode():
        expected = stock(torch.tensor([PROMPT])).logits[0]
    [got] = target.forward([Rows(SequenceCache(200), PROMPT, 0, len(PROMPT), len(PROMPT))])
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "llama"])
def test_windows_and_other_families_run_through_transformers(family):
    model = random_model(family, **FAMILIES[family])
    assert not can_decode(model)
    assert kernels(TargetModel(model, "w", threads=1)).endswith("+transformers")


def test_a_model_that_comes_out_different_runs_through_transformers(monkeypatch):
    """As one would with a layer that is not where it is expected."""
    whole = decoder._layer

    def without_activation(module):
        module.mlp.act_fn = torch.nn.Identity()
        layer = whole(module)
        module.mlp.act_fn = torch.nn.SiLU()
        return layer

    monkeypatch.setattr(decoder, "_layer", without_activation)
    stock = random_model("llama", **GROUPED)
    target = TargetModel(copy.deepcopy(stock), "w", threads=1)
    assert kernels(target).endswith("+transformers")
    with torch.inference_mode():
        expected = stock(torch.tensor([PROMPT])).logits[0]
    [got] = target.forward([Rows(SequenceCache(200), PROMPT, 0, len(PROMPT), len(PROMPT))])
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_a_model_that_is_not_packed_is_refused():
    with pytest.raises(TypeError, match="not packed together"):
        Decoder(random_model("llama", **GROUPED))


@pytest.mark.parametrize("width", [64, 1536, 11008, 100, 33])
@pytest.mark.parametrize("threads", [1, 3])
def test_an_activation_gives_a_row_the_same_bits_among_any_number(width, threads):
    """Kernels cut larger tensors up among threads, and compute what is left of a vector in another way."""
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(67, width, generator=generator) * 4
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        alone = torch.cat([_by_rows(torch.nn.functional.silu, row[None]) for row in x])
        for count in (2, 7, 21, 22, 67):
            assert torch.equal(_by_rows(torch.nn.functional.silu, x[:count]), alone[:count])
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(alone, torch.nn.functional.silu(x))
