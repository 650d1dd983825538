from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from cluster.checkpoints import (
    CheckpointError,
    end_of_sequence_ids,
    load_model,
    load_tokenizer,
    resolve,
    tokenizer_hash,
    weights_hash,
)
from cluster.checkpoints.tiny import build_tiny


@pytest.fixture(scope="module")
def checkpoint(tiny_path):
    return resolve(str(tiny_path))


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return load_tokenizer(checkpoint)


def test_a_loaded_model_only_serves(checkpoint):
    model = load_model(checkpoint, "bfloat16", "cpu")
    assert not model.training
    assert all(p.dtype == torch.bfloat16 and not p.requires_grad for p in model.parameters())


def test_an_unknown_dtype_is_refused(checkpoint):
    with pytest.raises(CheckpointError, match="unknown dtype 'int7'"):
        load_model(checkpoint, "int7", "cpu")


def test_a_directory_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_model(resolve(str(tmp_path)), "float32", "cpu")


def test_the_tokenizer_hash_tells_tokenizers_apart(tmp_path, tokenizer):
    other = load_tokenizer(resolve(str(build_tiny(tmp_path, seed=1, vocab=400))))
    assert tokenizer_hash(other) != tokenizer_hash(tokenizer)


def test_the_tokenizer_hash_does_not_depend_on_use(checkpoint, tokenizer):
    used = load_tokenizer(checkpoint)
    used(["a", "longer one"], padding=True, truncation=True, max_length=3)
    assert tokenizer_hash(used) == tokenizer_hash(tokenizer)


def test_the_tokenizer_hash_is_the_same_in_another_process(checkpoint, tokenizer):
    code = (
        "import sys; from cluster.checkpoints import load_tokenizer, resolve, tokenizer_hash;"
        "print(tokenizer_hash(load_tokenizer(resolve(sys.argv[1]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, checkpoint.path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == tokenizer_hash(tokenizer)


def test_the_weights_hash_sees_the_last_bit(checkpoint):
    model = load_model(checkpoint, "float32", "cpu")
    before = weights_hash(model)
    model.get_output_embeddings().weight.view(torch.int32)[-1, -1] ^= 1
    assert weights_hash(model) != before


def test_the_weights_hash_sees_the_dtype(checkpoint):
    assert len({weights_hash(load_model(checkpoint, dtype, "cpu")) for dtype in ("float32", "bfloat16")}) == 2


def test_end_of_sequence_ids_come_from_model_and_tokenizer(checkpoint, tokenizer):
    model = load_model(checkpoint, "float32", "cpu")
    model.generation_config.eos_token_id = [7, 9]
    assert end_of_sequence_ids(model, tokenizer) == {1, 7, 9}
