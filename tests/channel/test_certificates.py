import os

import pytest

from cluster.channel.certificates import CertificateError, channel_credentials, refusal, server_credentials
from cluster.channel.spec import Channel
from tests.drafting.certificates import Authority


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "pki")


def complaint(channel):
    with pytest.raises(CertificateError) as caught:
        server_credentials(channel)
    with pytest.raises(CertificateError):
        channel_credentials(channel)
    return str(caught.value)


def test_a_missing_file_is_named(authority):
    good = authority.issue("a")
    absent = f"{good.authority}.absent"
    assert f"{absent} cannot be read: No such file" in complaint(
        Channel(good.certificate, good.private_key, absent)
    )


def test_a_key_of_another_certificate(authority):
    one, other = authority.issue("a"), authority.issue("b")
    mixed = Channel(one.certificate, other.private_key, one.authority)
    assert complaint(mixed) == f"{one.certificate} is no certificate of the key in {other.private_key}"


def test_files_that_hold_something_else(authority, tmp_path):
    good, text = authority.issue("a"), tmp_path / "text.pem"
    text.write_text("hello")
    assert "is no certificate" in complaint(Channel(str(text), good.private_key, good.authority))
    assert "holds no certificate" in complaint(Channel(good.certificate, good.private_key, str(text)))


def test_an_encrypted_key_is_refused_and_asks_for_no_password(authority, tmp_path):
    from cryptography.hazmat.primitives import serialization

    good = authority.issue("a")
    with open(good.private_key, "rb") as file:
        key = serialization.load_pem_private_key(file.read(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert "is no certificate of the key" in complaint(Channel(good.certificate, str(locked), good.authority))


def test_what_grpc_says_of_other_failures_is_no_refusal():
    assert refusal("UNAVAILABLE: Socket closed") == ""
    nobody = "failed to connect to all addresses; last error: ipv4:127.0.0.1:1: Connection refused"
    assert refusal(f"UNAVAILABLE: {nobody}") == ""


def test_files_are_left_as_they_are(authority):
    good = authority.issue("a")
    before = [os.stat(path).st_mtime_ns for path in (good.certificate, good.private_key)]
    server_credentials(good)
    assert before == [os.stat(path).st_mtime_ns for path in (good.certificate, good.private_key)]
