"""What drafters read of the target: the right layers, fused, and the same bits whatever shares the step."""

import copy

import pytest
import torch

from cluster.checkpoints import CheckpointError
from cluster.drafting.block_diffusion import read_fusing
from tests.drafter_service.dflash.checkpoints import VOCAB, build_drafter
from tests.verifier_service.families import random_model
from verifier_service.cache.prefixes import PageNames
from verifier_service.target.target import Rows, TargetModel

WIDTH, LAYERS = 64, 2
TEXT = [(7 * i * i + 3) % VOCAB for i in range(70)]
# Through our own layers, and through transformers'.
FAMILIES = ["llama", "phi3"]


@pytest.fixture(scope="module")
def fusing(tmp_path_factory):
    def make(layers=(0, 1), dtype="float32", **changes):
        folder = tmp_path_factory.mktemp("drafter")
        fields = {"hidden_size": WIDTH, "num_target_layers": LAYERS} | changes
        build_drafter(folder, dflash_config={"target_layer_ids": list(layers)}, **fields)
        return read_fusing(folder, dtype)

    return make


def computed(target, *chunks):
    """A cache with TEXT, computed in chunks of so many rows."""
    cache, start = target.pool.open(), 0
    for count in (*chunks, len(TEXT) - sum(chunks)):
        target.forward([Rows(cache, TEXT[start : start + count], start, 0)])
        start = cache.length = start + count
    return cache


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layers", [(0,), (1,), (0, 1)])
def test_layer_n_is_what_transformers_calls_hidden_states_n_plus_1(fusing, family, layers):
    stock, made = random_model(family, VOCAB), fusing(layers)
    target = TargetModel(copy.deepcopy(stock), "w", threads=1, fusing=made)
    got = computed(target, 30).fused(0, len(TEXT))
    with torch.inference_mode():
        states = stock(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
        right, early = (
            made.projection(torch.cat([states[layer + k][0] for layer in layers], dim=-1)) for k in (1, 0)
        )
    torch.testing.assert_close(got, right, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(got, early, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_is_the_same_bits_alone_in_chunks_beside_others_and_after_found_pages(fusing, family, dtype):
    target = TargetModel(random_model(family, VOCAB), "w", threads=1, fusing=fusing(dtype=dtype))
    cache = computed(target)
    whole = cache.fused(0, len(TEXT))
    assert whole.dtype == getattr(torch, dtype)
    assert torch.equal(computed(target, *[1] * 9, 5, 17).fused(0, len(TEXT)), whole)
    cut, one, other = 40, target.pool.open(), target.pool.open()
    target.forward([Rows(one, TEXT[:cut], 0, 0), Rows(other, TEXT[3:36], 0, 1)])
    target.forward([Rows(other, TEXT[36:40], 33, 0), Rows(one, TEXT[cut:], cut, 5)])
    one.length = len(TEXT)
    assert torch.equal(one.fused(0, len(TEXT)), whole)
    names = PageNames("model", "")
    one.name(names, TEXT)
    found = target.pool.open()
    found.adopt(names, TEXT, len(TEXT) - 1)
    start = found.length
    assert start
    target.forward([Rows(found, TEXT[start:], start, 1)])
    assert torch.equal(found.fused(0, len(TEXT)), whole)


def test_logits_do_not_depend_on_whether_something_is_read(fusing):
    stock = random_model("llama", VOCAB)
    logits = []
    for made in (None, fusing((0,)), fusing((0, 1))):
        target = TargetModel(copy.deepcopy(stock), "w", threads=1, fusing=made)
        logits += target.forward([Rows(target.pool.open(), TEXT, 0, 9)])
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@pytest.mark.parametrize("changes", [{"num_target_layers": 3}, {"hidden_size": 32}])
def test_a_drafter_of_another_target_is_refused(fusing, changes):
    with pytest.raises(CheckpointError, match=r"made for a target of \d layers of width \d+, this one has 2"):
        TargetModel(random_model("llama", VOCAB), "w", threads=1, fusing=fusing(**changes))
