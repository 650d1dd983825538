from __future__ import annotations

import pytest

from cluster.checkpoints import (
    DEFAULT_REFERENCE,
    end_of_sequence_ids,
    load_model,
    load_tokenizer,
    resolve,
    tokenizer_hash,
    weights_hash,
)

# The first use downloads 93 MB and converts them.
pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

PROMPT = "What is the capital of France?"
# fmt: off
PROMPT_IDS = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182,
    2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198,
]
# fmt: on
ANSWER_IDS = [504, 3575, 282, 4649, 314, 7042, 30, 2]  # "The capital of France is Paris.<|im_end|>"


def test_the_default_model_answers():
    checkpoint = resolve(DEFAULT_REFERENCE)
    tokenizer = load_tokenizer(checkpoint)
    model = load_model(checkpoint, "float32", "cpu")
    messages = [{"role": "user", "content": PROMPT}]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert prompt.input_ids[0].tolist() == PROMPT_IDS
    output = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, len(PROMPT_IDS) :]
    assert output.tolist() == ANSWER_IDS
    assert end_of_sequence_ids(model, tokenizer) == {2}


def test_the_conversion_is_reproducible():
    checkpoint = resolve(DEFAULT_REFERENCE)
    # Dequantising is exact arithmetic: another hash means other weights, whatever the machine.
    assert weights_hash(load_model(checkpoint, "float32", "cpu")) == (
        "574a6185dfd26ad096cbb36cb38e23890dc5c8a9d278c081007ffbf3fa4f4b6b"
    )
    assert len(tokenizer_hash(load_tokenizer(checkpoint))) == 64
