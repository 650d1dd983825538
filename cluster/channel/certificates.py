"""Mutual TLS from PEM files that may be replaced while both sides run."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from cluster.channel.spec import Channel

_log = logging.getLogger(__name__)

# What gRPC's text ends in when this side does not accept the other's certificate.
_NOT_ACCEPTED = re.compile(
    r"(?:OPENSSL_internal:|verification check failed with error: \w+: )(.+?)(?:: OK)?$"
)
# The drafter's own words, see DraftingServer.
_UNAUTHENTICATED = "UNAUTHENTICATED: "
# What gRPC says when the other side hangs up on a handshake; a port where nobody listens reads otherwise.
_HUNG_UP = ("Socket closed", "Connection reset", "Broken pipe")


class CertificateError(ValueError):
    """The certificates cannot be used; the message is one sentence that names the file."""


@dataclass(frozen=True, slots=True)
class _Pem:
    chain: bytes
    key: bytes
    authority: bytes


class _Files:
    """The three files as they last belonged together."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._stamp: tuple[object, ...] = ()

    def read(self) -> _Pem | None:
        """Their content, None if it has not changed. Raises CertificateError."""
        stamp = self._stamps()
        if stamp == self._stamp:
            return None
        pem = _Pem(*(_bytes(path) for path in self._paths()))
        _match(self._channel)
        # Replaced in the meantime: what was read may be half of each, and is read again at the next call.
        if self._stamps() == stamp:
            self._stamp = stamp
        return pem

    def _paths(self) -> tuple[Path, Path, Path]:
        channel = self._channel
        return Path(channel.certificate), Path(channel.private_key), Path(channel.authority)

    def _stamps(self) -> tuple[object, ...]:
        try:
            stats = [path.stat() for path in self._paths()]
        except OSError as error:
            raise CertificateError(f"{error.filename} cannot be read: {error.strerror}") from None
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)


def server_credentials(channel: Channel) -> grpc.ServerCredentials:
    """Asks every client for a certificate; the files are read again for a connection if they have changed.

    That the client's certificate carries the name is left to `carries`. Raises CertificateError.
    """
    files = _Files(channel)
    first = files.read()
    assert first is not None
    renew: Any = _renewal(files)  # The stubs do not know that it may return None.
    return grpc.dynamic_ssl_server_credentials(
        _configuration(first), renew, require_client_authentication=True
    )


def channel_credentials(channel: Channel) -> grpc.ChannelCredentials:
    """From the files as they are now. Raises CertificateError."""
    pem = _Files(channel).read()
    assert pem is not None
    return grpc.ssl_channel_credentials(pem.authority, pem.key, pem.chain)


def carries(auth_context: Mapping[str, Iterable[bytes]], name: str) -> bool:
    """Whether a peer's certificate, already verified, is made out to the name."""
    return name.encode() in auth_context.get("x509_subject_alternative_name", ())


def refusal(details: str) -> str:
    """Why one side does not trust the other; empty if a connection failed for another reason.

    details: status and text of the failed call, as gRPC gives them.
    """
    if found := _NOT_ACCEPTED.search(details):
        reason = found[1].replace("_", " ").lower().rstrip(".")
        return f"the drafter's certificate is not accepted: {reason}"
    if details.startswith(_UNAUTHENTICATED):
        return details.removeprefix(_UNAUTHENTICATED)
    if "failed to connect" in details and any(words in details for words in _HUNG_UP):
        return "the drafter ended the handshake; it may not accept this verifier's certificate"
    return ""


def _renewal(files: _Files) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
    def renew() -> grpc.ServerCertificateConfiguration | None:
        try:
            pem = files.read()
        except CertificateError as error:
            _log.warning("the drafting channel keeps its certificate: %s", error)
            return None
        return None if pem is None else _configuration(pem)

    return renew


def _configuration(pem: _Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.chain)], pem.authority)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}") from None


def _match(channel: Channel) -> None:
    """gRPC would take files that do not belong together, and fail at every handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A password keeps OpenSSL from asking for one at the terminal.
        context.load_cert_chain(channel.certificate, channel.private_key, password="")
    except (ssl.SSLError, OSError, ValueError):
        raise CertificateError(
            f"{channel.certificate} is no certificate of the key in {channel.private_key}"
        ) from None
    try:
        context.load_verify_locations(channel.authority)
    except (ssl.SSLError, OSError):
        raise CertificateError(f"{channel.authority} holds no certificate") from None
