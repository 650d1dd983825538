"""The error of a request that cannot be served as it is."""

from __future__ import annotations

from cluster.gateway.errors import Reason, RequestError

_QUOTED_CHARACTERS = 80


class InvalidRequestError(RequestError):
    """field: the request's field at fault; the message is one sentence for the client."""

    def __init__(self, field: str, sentence: str, reason: Reason = Reason.INVALID_ARGUMENT) -> None:
        # A field's name stays as it is written.
        if not field or not sentence.startswith(field.rpartition(".")[2]):
            sentence = sentence[:1].upper() + sentence[1:]
        super().__init__(reason, f"{sentence}.", field)


def short(name: str) -> str:
    """A name of the client's, quoted: what it sends may be longer than a status can carry."""
    return repr(name if len(name) <= _QUOTED_CHARACTERS else name[:_QUOTED_CHARACTERS] + "…")
