"""What a message may weigh, whichever front it comes by, and how many may watch."""

from __future__ import annotations

from cluster.gateway.errors import Reason, RequestError

# gRPC's own default, which Ray's proxy lifts to what its environment says, or 2 GiB.
MAX_MESSAGE_BYTES = 4 * 2**20
# Of a replica's health: who watches is asked for no key, and holds one of its places for as long as it likes.
MAX_WATCHES = 64


def too_large() -> RequestError:
    """The refusal of a message beyond it."""
    sentence = f"A request may have at most {MAX_MESSAGE_BYTES} bytes."
    return RequestError(Reason.PAYLOAD_TOO_LARGE, sentence)
