import pytest

from cluster.channel.spec import LOOPBACK, Channel


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_plain_text_stays_on_this_machine(host):
    assert LOOPBACK.allows_plaintext(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "::", "fe80::1", "drafter.example", ""])
def test_plain_text_leaves_it_only_by_the_flag(host):
    assert not LOOPBACK.allows_plaintext(host)
    assert Channel(plaintext=True).allows_plaintext(host)
