"""Tiny random models of every family that is tested, and what transformers decodes with them."""

import copy
from dataclasses import replace

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from cluster.speculation.noise import Noise
from cluster.speculation.sampling import target_probs
from verifier_service.target.target import TargetModel

GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
SLIDING = {"sliding_window": 24}
FAMILIES = {
    "llama": GROUPED,
    "qwen2": {"num_key_value_heads": 2, **SLIDING, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3": GROUPED,
    "gemma": GROUPED,
    "mistral": {**GROUPED, **SLIDING},
    "phi": {"num_key_value_heads": 2},
    "phi3": {"num_key_value_heads": 2, **SLIDING},
}


def random_model(family, vocab=500, **fields):
    """Made by transformers itself. fields: of its configuration; those of FAMILIES unless given."""
    config = AutoConfig.for_model(
        family,
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        initializer_range=0.15,
        tie_word_embeddings=False,
        pad_token_id=0,
        **(fields or FAMILIES.get(family, {})),
    )
    torch.manual_seed(4)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def served(loaded, stock):
    """What an engine is built over, for another model with the same tokenizer."""
    target = TargetModel(copy.deepcopy(stock), "w", threads=1)
    return replace(loaded, model=target, numerics=target.numerics(True), stop_ids=frozenset())


@torch.inference_mode()
def reference(stock, request):
    """Tokens of one request, each from a whole forward of transformers' own model and the request's noise."""
    text, answer = list(request.prompt_ids), []
    for _ in range(request.max_tokens):
        logits = stock(torch.tensor([text]), use_cache=False).logits[0, -1:].float()
        probs = target_probs(logits, request.sampling)[0]
        if request.sampling.temperature:
            noise = Noise(request.seed, len(text)).gumbel(len(text), len(probs))
            token = int((probs.double().log() + noise).argmax())
        else:
            token = int(probs.argmax())
        text.append(token)
        answer.append(token)
    return answer
