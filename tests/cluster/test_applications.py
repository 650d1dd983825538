"""The applications as Serve builds them from a config file."""

import pytest

from cluster.app import StartError, running
from cluster.applications import drafters, truedraft
from cluster.config import EXPOSED_DRAFTS, EXPOSED_GATEWAY, ClusterConfig, ConfigError, load_config


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
