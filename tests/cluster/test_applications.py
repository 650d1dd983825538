"""The applications as Serve builds them from a config file."""

import json

import pytest

from cluster.app import StartError, running
from cluster.applications import drafters, truedraft
from cluster.checkpoints import load_tokenizer, resolve
from cluster.checkpoints.tiny import build_tiny
from cluster.config import EXPOSED_DRAFTS, EXPOSED_GATEWAY, ClusterConfig, ConfigError, load_config
from tests.drafter_service.dflash.checkpoints import HIDDEN, TARGET_LAYERS, build_drafter


@pytest.mark.parametrize("build", [truedraft, drafters])
def test_a_configuration_is_checked_like_any_other(build):
    with pytest.raises(ConfigError, match=r"^verifier\.colour is not a field of the configuration\.$"):
        build({"verifier": {"colour": "red"}})


@pytest.mark.parametrize("build", [truedraft, drafters])
def test_emulation_is_no_way_around_what_follows(build):
    with pytest.raises(ConfigError, match=r"emulation\.enabled is for `truedraft serve`"):
        build({"emulation": {"enabled": True}})


@pytest.mark.parametrize("build", [truedraft, drafters])
def test_drafts_do_not_cross_the_network_in_plain_text_by_default(build):
    with pytest.raises(ConfigError, match="plain text"):
        build({})
    open_to_all = {"gateway": {"anonymous": True}}
    assert build({"channel": {"plaintext": True}, **open_to_all})
    assert build({"drafter": {"mode": "off"}, **open_to_all})


def test_a_gateway_lets_nobody_in_without_a_key_by_default():
    with pytest.raises(ConfigError) as caught:
        truedraft({"channel": {"plaintext": True}})
    assert str(caught.value) == EXPOSED_GATEWAY
    assert truedraft({"channel": {"plaintext": True}, "gateway": {"keys_file": "/keys.yaml"}})
    # Nothing of it is a drafter's.
    assert drafters({"channel": {"plaintext": True}})


def test_the_command_lets_nobody_in_without_a_key_by_default():
    with pytest.raises(StartError) as caught, running(load_config(None, ["channel.plaintext=true"])):
        pass
    assert str(caught.value) == EXPOSED_GATEWAY


def test_nor_by_the_command():
    with pytest.raises(StartError) as caught, running(ClusterConfig()):
        pass
    assert str(caught.value) == EXPOSED_DRAFTS


def another_tokenizer(folder):
    load_tokenizer(resolve(str(build_tiny(folder / "other", seed=1, vocab=300)))).save_pretrained(folder)


def corrupt(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def reconfigured(**changes):
    def change(folder):
        fields = json.loads((folder / "config.json").read_text())
        fields["dflash_config"] |= changes
        (folder / "config.json").write_text(json.dumps(fields))

    return change


@pytest.mark.parametrize(
    ("made", "spoil", "sentence"),
    [
        ({}, another_tokenizer, r"^the tokenizer of \S+ is \w+, that of its target \w+\.$"),
        ({}, corrupt, r"^\S+model\.safetensors cannot be read: .*\.$"),
        (
            {},
            reconfigured(target_layer_ids=[1, 6]),
            r"target_layer_ids \[1, 6\] of a target with 6 layers\.$",
        ),
        ({"num_target_layers": 4, "dflash_config": {"target_layer_ids": [1]}}, None, "a target of 4 layers"),
        ({"vocab_size": 640}, None, r"the embedding of \S+ is \[512, 32\], the drafter needs \[640, 32\]\.$"),
        (None, None, r"the hub did not give it: .*\.$"),
    ],
    ids=["tokenizer", "corrupt", "layer ids", "depth", "padded vocabulary", "missing"],
)
def test_a_drafter_that_does_not_fit_its_target_is_refused_before_anything_starts(
    tmp_path, monkeypatch, made, spoil, sentence
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    target = build_tiny(tmp_path / "tiny", seed=1, layers=TARGET_LAYERS, hidden=HIDDEN)
    reference = "nobody/nothing"
    if made is not None:
        reference = str(build_drafter(tmp_path / "d", **made))
    if spoil is not None:
        spoil(tmp_path / "d")
    given = [f"model={target}", "emulation.enabled=true", "drafter.kind=dflash", f"drafter.model={reference}"]
    with pytest.raises(StartError, match=sentence), running(load_config(None, given)):
        pass
