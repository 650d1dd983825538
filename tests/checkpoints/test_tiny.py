from __future__ import annotations

import pytest
import torch

from cluster.checkpoints import load_model, load_tokenizer, resolve, tokenizer_hash, weights_hash
from cluster.checkpoints.tiny import CONTEXT_LENGTH, build_tiny


def load(path):
    checkpoint = resolve(str(path))
    return load_model(checkpoint, "float32", "cpu"), load_tokenizer(checkpoint)


def test_the_seed_decides_the_weights_and_nothing_else(tmp_path):
    once, tokenizer = load(build_tiny(tmp_path / "a", seed=3))
    torch.rand(5)  # the caller's random state must not matter
    again, tokenizer_again = load(build_tiny(tmp_path / "b", seed=3))
    other, _ = load(build_tiny(tmp_path / "c", seed=4))
    assert weights_hash(once) == weights_hash(again) != weights_hash(other)
    assert tokenizer_hash(tokenizer) == tokenizer_hash(tokenizer_again)


def test_building_leaves_the_random_state_alone(tmp_path):
    before = torch.get_rng_state()
    build_tiny(tmp_path, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_any_text_survives_the_tokenizer(tmp_path):
    _, tokenizer = load(build_tiny(tmp_path, seed=0))
    text = "Grüße, 世界! \t  naïve\n\n🙂 def f(): pass"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer) == 512


def test_a_chat_becomes_a_prompt(tmp_path):
    _, tokenizer = load(build_tiny(tmp_path, seed=0))
    messages = [{"role": "user", "content": "Hello"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert prompt == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(prompt)
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 2
    assert ids.count(tokenizer.eos_token_id) == 1


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_greedy_decoding_wanders(tmp_path, family):
    model, tokenizer = load(build_tiny(tmp_path, seed=1, family=family))
    assert model.config.max_position_embeddings == CONTEXT_LENGTH
    assert model.config.num_key_value_heads == 2
    ids = tokenizer("What is the sea?", return_tensors="pt")
    output = model.generate(**ids, min_new_tokens=48, max_new_tokens=48, do_sample=False)[
        0, ids.input_ids.shape[1] :
    ]
    assert len(set(output.tolist())) >= 8


@pytest.mark.parametrize("vocab", [100, 100_000])
def test_a_vocabulary_that_cannot_be_trained_is_refused(tmp_path, vocab):
    with pytest.raises(ValueError, match="vocab must lie between"):
        build_tiny(tmp_path, seed=0, vocab=vocab)
