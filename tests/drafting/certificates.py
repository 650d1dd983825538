"""Certificates of every kind that a peer may come with."""

import datetime

import trustme

from cluster.channel.spec import CHANNEL_NAME, Channel

LONG_AGO = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)


class Authority:
    """Signs certificates; each lies in files of its own below `folder`."""

    def __init__(self, folder):
        self._ca = trustme.CA()
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, side, name=CHANNEL_NAME, expired=False, trusted=None, into=None):
        """A new certificate in the files of `side`. trusted: the authority of the other side's, ours unless
        it is given; into: the authority whose files are overwritten."""
        ends = {"not_before": LONG_AGO, "not_after": LONG_AGO + datetime.timedelta(days=1)}
        leaf = self._ca.issue_cert(name, **(ends if expired else {}))
        folder = (into or self)._folder
        chain, key = folder / f"{side}.crt", folder / f"{side}.key"
        chain.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(key)
        return Channel(str(chain), str(key), str((trusted or into or self).file))
