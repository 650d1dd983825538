"""How the drafting channel is secured."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

CHANNEL_NAME: Final = "drafting.truedraft.internal"


@dataclass(frozen=True, slots=True)
class Channel:
    """certificate: this side's chain; private_key: its key; authority: who may sign the other side's: paths
    of PEM files, all three or none. name: the DNS name that every certificate must carry, whatever the
    address. plaintext: without certificates, leave the machine all the same.
    """

    certificate: str = ""
    private_key: str = ""
    authority: str = ""
    name: str = CHANNEL_NAME
    plaintext: bool = False

    @property
    def secure(self) -> bool:
        return bool(self.certificate)

    def allows_plaintext(self, host: str) -> bool:
        """Whether to speak to, or listen on, a host without TLS. host: an IP address or a name."""
        if self.plaintext or host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:
            return False


# Plain text, and on this machine alone.
LOOPBACK: Final = Channel()
