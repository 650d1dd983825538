"""Our own layers: which models it takes, and that its logits are the stock model's."""

import copy

import pytest
import torch

from cluster.kernels.packed import quantize
from tests.verifier_service.families import random_model
from tests.verifier_service.target.test_target import FAMILIES, GROUPED, NEXT, PROMPT
from verifier_service.layers import decoder
from verifier_service.layers.decoder import can_decode
from verifier_service.target.target import Rows, TargetModel

OWN = {
    "llama": GROUPED,
    "llama, one key head": {"num_key_value_heads": 1},
    "llama, heads of 80": {"num_key_value_heads": 4, "head_dim": 80},
    "llama, heads of 24": {"num_key_value_heads": 2, "head_dim": 24},
    "mistral": {**GROUPED, "sliding_window": None},
    "mistral, windows": {**GROUPED, "sliding_window": 8},
    "qwen2": {"num_key_value_heads": 2},
    "qwen2, some windows": FAMILIES["qwen2"],
    "qwen3": GROUPED,
}
OTHERS = {
    "phi3": FAMILIES["phi3"],
    "gemma": FAMILIES["gemma"],
    "gpt2": {},
    "llama": {**GROUPED, "hidden_act": "gelu"},
    "mistral": {**GROUPED, "hidden_act": "relu"},
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


@pytest.mark.parametrize("name", OWN)
def test_logits_are_the_stock_models(name):
    stock = random_model(name.split(",")[0], **OWN[name])
    randomise_norms_and_biases(stock)
    target = TargetModel(copy.deepcopy(stock), "w", threads=1)
    assert kernels(target).endswith("/own-layers")
    with torch.inference_mode():
        expected = stock(torch.tensor([PROMPT + NEXT])).logits[0]
    cache, length = target.pool.open(), len(PROMPT)
    [start] = target.forward([Rows(cache, PROMPT, 0, length)])
    [rest] = target.forward([Rows(cache, NEXT, length, len(NEXT))])
    torch.testing.assert_close(torch.cat([start, rest]), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "qwen2", "phi3"])
def test_in_integers_logits_are_those_of_the_rounded_model(name):
    stock = random_model(name, **(OTHERS | OWN)[name])
    whole = copy.deepcopy(stock)
    quantize(stock)
    target = TargetModel(copy.deepcopy(stock), "w", threads=1, integers=True)
    assert target.numerics(row_invariant=True).dtype == "int8"
    assert kernels(target).endswith("/transformers-layers" if name == "phi3" else "/own-layers")
    with torch.inference_mode():
        rounded, before = (model(torch.tensor([PROMPT])).logits[0] for model in (stock, whole))
    [logits] = target.forward([Rows(target.pool.open(), PROMPT, 0, len(PROMPT))])
    torch.testing.assert_close(logits, rounded, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(before, rounded, atol=1e-3, rtol=1e-3)


def test_integers_are_refused_where_they_cannot_run():
    with pytest.raises(ValueError, match="int8 run on a CPU alone"):
        TargetModel(random_model("llama", **GROUPED).bfloat16(), "w", threads=1, integers=True)


def test_scaled_positions_are_the_stock_models():
    stock = random_model("llama", **GROUPED, rope_parameters=SCALED)
    target = TargetModel(copy.deepcopy(stock), "w", threads=1)
    assert kernels(target).endswith("/own-layers")
    with torch.inference_mode():
        expected = stock(torch.tensor([PROMPT])).logits[0]
    [got] = target.forward([Rows(target.pool.open(), PROMPT, 0, len(PROMPT))])
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", OTHERS)
def test_other_families_run_through_transformers(family):
    model = random_model(family, **OTHERS[family])
    assert not can_decode(model)
    assert kernels(TargetModel(model, "w", threads=1)).endswith("/transformers-layers")


def test_a_model_that_comes_out_different_runs_through_transformers(monkeypatch):
    """As one would with weights that are not where they are expected."""
    right = decoder._gate_up
    monkeypatch.setattr(decoder, "_gate_up", lambda gate, up: right(up, gate))
    stock = random_model("llama", **GROUPED)
    target = TargetModel(copy.deepcopy(stock), "w", threads=1)
    assert kernels(target).endswith("/transformers-layers")
    with torch.inference_mode():
        expected = stock(torch.tensor([PROMPT])).logits[0]
    [got] = target.forward([Rows(target.pool.open(), PROMPT, 0, len(PROMPT))])
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
