"""Who may read what tells of all tenants, over HTTP."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator

from fastapi import Request

from cluster.gateway.errors import Reason, RequestError
from cluster.gateway.tenants import Doors

_BASIC = "basic "


class SignInError(RequestError):
    """Nobody who may look: a browser is to ask its user for a key."""


def operators_only(doors: Doors) -> Callable[[Request], None]:
    """A dependency of routes. Raises RequestError for all but operators."""

    def guard(request: Request) -> None:
        doors.operator(request.headers.items())

    return guard


def operators_in_browsers(doors: Doors) -> Callable[[Request], None]:
    """The same for pages, which are read without a header of one's own: a browser sends what its user typed,
    as HTTP Basic (RFC 7617), whose password is the key. To be used where nothing is changed by a request,
    since browsers add it to whatever any page has them ask. Raises SignInError.
    """

    def guard(request: Request) -> None:
        try:
            doors.operator(_as_bearer(request.headers.items()))
        except RequestError as error:
            # To a key of no operator as well, or a browser would send it for ever.
            raise SignInError(Reason.UNAUTHENTICATED, error.sentence) from None

    return guard


def _as_bearer(headers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for name, value in headers:
        if name == "authorization" and value.lower().startswith(_BASIC):
            yield name, f"Bearer {_password(value[len(_BASIC) :])}"
        else:
            yield name, value


def _password(credentials: str) -> str:
    """Empty if there is none."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
