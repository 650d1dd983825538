"""The ragged forward against the stock model, and bitwise against itself."""

import copy
import itertools

import pytest
import torch

from cluster.checkpoints import load_model, resolve
from cluster.checkpoints.tiny import build_tiny
from cluster.kernels.attention import PAGE
from tests.verifier_service.families import random_model
from verifier_service.target.target import Rows, TargetModel

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
    cache, beside = target.pool.open(), target.pool.open()
    first, second = target.forward([Rows(cache, PROMPT, 0, 1), Rows(beside, PROMPT[:40], 0, 1)])
    [rest] = target.forward([Rows(cache, NEXT, len(PROMPT), len(NEXT))])
    torch.testing.assert_close(torch.cat([first, rest]), expected, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(second, other, atol=2e-4, rtol=1e-4)


def test_a_rejected_draft_leaves_no_trace(loaded):
    clean, tried = loaded.model.pool.open(), loaded.model.pool.open()
    for cache in (clean, tried):
        loaded.model.forward([Rows(cache, PROMPT, 0, 1)])
    loaded.model.forward([Rows(tried, [1, 2, 3, 4], len(PROMPT), 4)])
    [expected] = loaded.model.forward([Rows(clean, NEXT, len(PROMPT), len(NEXT))])
    [after] = loaded.model.forward([Rows(tried, NEXT, len(PROMPT), len(NEXT))])
    assert torch.equal(after, expected)


GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
SLIDING = {"sliding_window": 8}
ALTERNATING = {**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}
FAMILIES = {
    "llama": GROUPED,
    "mistral": {**GROUPED, **SLIDING},
    "phi3": {"num_key_value_heads": 2, **SLIDING},
    "qwen2": {"num_key_value_heads": 2, **SLIDING, "use_sliding_window": True, "max_window_layers": 1},
    "gemma": GROUPED,
    "gemma3_text": {**GROUPED, **ALTERNATING},
    "gpt2": {},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_and_decoding_are_the_stock_models(family):
    stock = random_model(family, **FAMILIES[family])
    target = TargetModel(copy.deepcopy(stock), "w", threads=1)
    texts = [PROMPT + NEXT, PROMPT[3:40] + NEXT, [7, *NEXT]]
    with torch.inference_mode():
        expected = [stock(torch.tensor([text])).logits[0] for text in texts]
    caches = [target.pool.open() for text in texts]
    prompts = [len(text) - len(NEXT) for text in texts]
    start = target.forward(
        [Rows(cache, text[:n], 0, n) for cache, text, n in zip(caches, texts, prompts, strict=True)]
    )
    rest = target.forward(
        [
            Rows(cache, NEXT, n, len(NEXT))
            for cache, n in zip(reversed(caches), reversed(prompts), strict=True)
        ]
    )
    for whole, head, tail in zip(expected, start, reversed(rest), strict=True):
        torch.testing.assert_close(torch.cat([head, tail]), whole, atol=1e-4, rtol=1e-4)


def test_a_window_changes_the_stock_models_answer():
    """Without this, ignoring windows would pass the test above."""
    windowed, full = (random_model("mistral", **GROUPED, sliding_window=window) for window in (8, None))
    with torch.inference_mode():
        left, right = (model(torch.tensor([PROMPT])).logits for model in (windowed, full))
    assert float((left - right).abs().max()) > 0.01


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("bloom", {}, "'bloom' cannot run through a custom attention"),
        ("mamba", {"state_size": 8}, "'mamba' cannot run through a custom attention"),
        (
            "llama4_text",
            {**GROUPED, "attention_chunk_size": 8, "num_local_experts": 2, "intermediate_size_mlp": 64},
            "'llama4_text' have unsupported layers: chunked_attention",
        ),
        (
            "llama",
            {
                **GROUPED,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 8,
                    "long_factor": [2.0] * 8,
                    "original_max_position_embeddings": 128,
                },
            },
            "rotary embedding of type 'longrope' makes a row depend on the rest of its batch",
        ),
    ],
)
def test_models_that_would_run_wrongly_are_refused_at_once(family, fields, message):
    with pytest.raises(ValueError, match=message):
        TargetModel(random_model(family, **fields), "w", threads=1)


@pytest.mark.parametrize(
    ("family", "fields", "option"),
    [("gemma2", GROUPED, "softcap"), ("gpt_oss", {**GROUPED, "num_local_experts": 2}, "s_aux")],
)
def test_attention_with_a_feature_of_its_own_is_refused_at_the_first_forward(family, fields, option):
    target = TargetModel(random_model(family, **fields), "w", threads=1)
    with pytest.raises(ValueError, match=f"attention with {option} is not supported"):
        target.forward([Rows(target.pool.open(), [1, 2, 3], 0, 1)])


def test_no_weight_is_kept_a_second_time():
    for family, fields in (("llama", GROUPED), ("gemma", GROUPED)):
        target = TargetModel(random_model(family, **fields), "w", threads=1)
        assert not [module for module in target._model.modules() if type(module) is torch.nn.Linear][1:]


@pytest.mark.parametrize("bias", [True, False])
def test_packed_linears_are_the_stock_ones(bias):
    fields = {**GROUPED, "attention_bias": bias, "mlp_bias": bias}
    stock = random_model("llama", **fields)
    if bias:
        for name, parameter in stock.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
    target = TargetModel(copy.deepcopy(stock), "w", threads=1)
    with torch.inference_mode():
        expected = stock(torch.tensor([PROMPT[:20]])).logits[0]
    [got] = target.forward([Rows(target.pool.open(), PROMPT[:20], 0, 20)])
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("prompt", [PAGE - 1, PAGE, PAGE + 1, 150])
def test_a_prompt_in_chunks_is_bitwise_the_whole_prompt(loaded, prompt):
    text = PROMPT[:prompt]
    whole, chunked = loaded.model.pool.open(), loaded.model.pool.open()
    [expected] = loaded.model.forward([Rows(whole, text, 0, 1)])
    edges = [*range(0, prompt, 7), prompt]
    for first, last in itertools.pairwise(edges):
        [got] = loaded.model.forward([Rows(chunked, text[first:last], first, int(last == prompt))])
    assert torch.equal(got, expected)
    after = [loaded.model.forward([Rows(cache, NEXT, prompt, len(NEXT))])[0] for cache in (whole, chunked)]
    assert torch.equal(*after)


def test_rows_are_bitwise_the_same_alone_in_blocks_and_beside_others(loaded):
    caches = [loaded.model.pool.open() for _ in range(3)]
    for cache in caches:
        loaded.model.forward([Rows(cache, PROMPT, 0, 1)])
    at = len(PROMPT)
    single = [loaded.model.forward([Rows(caches[0], [token], at + k, 1)])[0] for k, token in enumerate(NEXT)]
    [block] = loaded.model.forward([Rows(caches[1], NEXT, at, len(NEXT))])
    _, beside, _ = loaded.model.forward(
        [
            Rows(loaded.model.pool.open(), PROMPT[:90], 0, 1),
            Rows(caches[2], NEXT, at, len(NEXT)),
            Rows(loaded.model.pool.open(), [5, 6, 7], 0, 3),
        ]
    )
    assert torch.equal(torch.cat(single), block)
    assert torch.equal(beside, block)


def test_only_wanted_rows_get_logits(loaded):
    counts = [0, 3, 1]
    batch = [Rows(loaded.model.pool.open(), [1, 2, 3, 4], 0, wanted) for wanted in counts]
    every = loaded.model.forward([Rows(loaded.model.pool.open(), [1, 2, 3, 4], 0, 4)])[0]
    for wanted, logits in zip(counts, loaded.model.forward(batch), strict=True):
        assert logits.shape == (wanted, loaded.model.vocab_size)
        assert torch.equal(logits, every[4 - wanted :])


def test_a_batch_that_wants_no_logits_runs(loaded):
    [nothing] = loaded.model.forward([Rows(loaded.model.pool.open(), [1, 2, 3], 0, 0)])
    assert nothing.shape == (0, loaded.model.vocab_size)
