"""What a checkpoint must be: whole, of its kind, and made for this target; all else is refused in words."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from cluster.checkpoints import CheckpointError, load_model, load_tokenizer, resolve, tokenizer_hash
from cluster.checkpoints.tiny import build_tiny
from cluster.drafting.block_diffusion import read_config, read_projection
from cluster.drafting.drafter_checkpoints import resolve_drafter
from drafter_service.drafters.dflash.build import load_drafter
from drafter_service.drafters.dflash.loading import borrow, load_network
from tests.drafter_service.dflash.checkpoints import HIDDEN, TARGET_LAYERS, VOCAB, build_drafter


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target") / "tiny"
    return resolve(str(build_tiny(folder, seed=1, layers=TARGET_LAYERS, hidden=HIDDEN)))


@pytest.fixture(scope="module")
def tokenizer(target):
    return tokenizer_hash(load_tokenizer(target))


def load(folder, target, tokenizer):
    return load_drafter(str(folder), target, tokenizer, VOCAB, "float32", "cpu")


def edit(folder, **tensors):
    """Replaces tensors of a checkpoint, or takes those away that are None."""
    path = folder / "model.safetensors"
    held = load_file(path) | tensors
    save_file({name: tensor for name, tensor in held.items() if tensor is not None}, path)


@pytest.mark.parametrize("selects", [False, True])
def test_a_published_layout_is_read(tmp_path, target, tokenizer, selects):
    folder = build_drafter(tmp_path / "d", selects=selects)
    kind = "dflash2" if selects else "dflash"
    drafter = load(folder, target, tokenizer)
    assert (drafter.kind, drafter.longest, drafter.context) == (kind, 15, 512)
    assert drafter.features.layers == (1, 2, 4)
    assert drafter.features.digest == read_projection(folder, read_config(folder)).digest


def test_keys_may_lie_at_the_top_or_in_dflash_config(tmp_path):
    nested = build_drafter(tmp_path / "a", block_size=None, dflash_config={"block_size": 8})
    assert read_config(nested).block_size == 8
    fields = json.loads((nested / "config.json").read_text())
    fields |= fields.pop("dflash_config")
    (nested / "config.json").write_text(json.dumps(fields))
    assert read_config(nested).mask_id == 7
    assert read_config(nested).layer_ids == (1, 2, 4)
    del fields["target_layer_ids"]
    (nested / "config.json").write_text(json.dumps(fields))
    assert read_config(nested).layer_ids == (1, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architectures name LlamaForCausalLM"),
        ({"dflash_config": {"target_layer_ids": [6]}}, r"target_layer_ids \[6\] of a target with 6 layers"),
        ({"dflash_config": {"target_layer_ids": [2, 1]}}, r"\[2, 1\] do not ascend"),
        ({"block_size": 1}, "leaves no draft"),
        ({"num_target_layers": None}, "no num_target_layers"),
    ],
)
def test_a_configuration_that_does_not_add_up_is_refused(tmp_path, changes, message):
    folder = build_drafter(tmp_path / "d")
    fields = json.loads((folder / "config.json").read_text())
    fields["dflash_config"] |= changes.pop("dflash_config", {})
    (folder / "config.json").write_text(json.dumps(fields | changes))
    with pytest.raises(CheckpointError, match=message):
        load_network(folder, "float32", "cpu")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"norm.weight": None, "fc.weight": None}, "lacks fc.weight and 1 more"),
        ({"layers.0.surplus": torch.zeros(1)}, "no such drafter has: layers.0.surplus"),
        ({"norm.weight": torch.zeros(HIDDEN + 1)}, "its configuration says"),
        ({"norm.weight": torch.full((HIDDEN,), torch.nan)}, "not finite"),
        ({"draft_ids": torch.tensor([3, 3])}, "no ids of a vocabulary"),
        ({"draft_ids": torch.tensor([VOCAB])}, "no ids of a vocabulary"),
    ],
)
def test_weights_that_are_not_what_the_configuration_says_are_refused(tmp_path, tensors, message):
    folder = build_drafter(tmp_path / "d")
    edit(folder, **tensors)
    with pytest.raises(CheckpointError, match=message):
        load_network(folder, "float32", "cpu")


def test_missing_and_corrupt_files_are_refused(tmp_path, target, tokenizer):
    with pytest.raises(CheckpointError, match="no such directory"):
        resolve_drafter("./nowhere")
    folder = build_drafter(tmp_path / "d")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(folder, target, tokenizer)
    path.unlink()
    with pytest.raises(CheckpointError, match="no safetensors"):
        load(folder, target, tokenizer)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"no readable config\.json"):
        load(folder, target, tokenizer)


def test_another_target_is_refused(tmp_path, target, tokenizer):
    folder = build_drafter(tmp_path / "d")
    shallow = resolve(str(build_tiny(tmp_path / "shallow", seed=1, layers=2, hidden=HIDDEN)))
    with pytest.raises(CheckpointError, match="made for a target of 6 layers"):
        load(folder, shallow, tokenizer)
    wide = resolve(str(build_tiny(tmp_path / "wide", seed=1, layers=TARGET_LAYERS, hidden=2 * HIDDEN)))
    with pytest.raises(CheckpointError, match=r"embedding of .* is \[512, 64\]"):
        load(folder, wide, tokenizer)
    # Its own tokenizer, if it brings one.
    other = load_tokenizer(resolve(str(build_tiny(tmp_path / "other", seed=1, vocab=300))))
    other.save_pretrained(folder)
    with pytest.raises(CheckpointError, match="the tokenizer of"):
        load(folder, target, tokenizer)


@pytest.mark.parametrize("tied", [False, True])
def test_embedding_and_head_are_the_targets(tmp_path, target, tied):
    model = load_model(target, "float32", "cpu")
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    model.save_pretrained(tmp_path / "saved")
    config = read_config(build_drafter(tmp_path / "d"))
    borrowed, _ = borrow(resolve(str(tmp_path / "saved")), config, torch.tensor([4, 9]), "float32", "cpu")
    assert torch.equal(borrowed.embedding, model.get_input_embeddings().weight)
    assert torch.equal(borrowed.head, model.get_output_embeddings().weight[[4, 9]])
    assert torch.equal(borrowed.head, borrowed.embedding[[4, 9]]) == tied
