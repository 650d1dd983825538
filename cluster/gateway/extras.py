"""Fields of a request that ride in a call's metadata or HTTP headers, beside what its body says."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.gateway.errors import Reason
from cluster.gateway.invalid import InvalidRequestError, short
from truedraft.v1 import inference_pb2 as pb

_PREFIX = "truedraft-"
LAW, DOMAIN = "truedraft-law", "truedraft-domain"
# "lenience=0.5, ceiling=2"
LAW_PARAMS = "truedraft-law-params"
# Short for the law's parameter of this name.
MAX_DISTORTION = "truedraft-max-distortion"
_KNOWN = (LAW, DOMAIN, LAW_PARAMS, MAX_DISTORTION)


def with_extras(
    request: pb.GenerateRequest, metadata: Iterable[tuple[str, str | bytes]]
) -> pb.GenerateRequest:
    """The request with what its metadata add. Raises InvalidRequestError for what they contradict, and for
    names of ours that are not known."""
    given = _given(metadata)
    if not given:
        return request
    merged = pb.GenerateRequest()
    merged.CopyFrom(request)
    for field, name in (("law", LAW), ("domain", DOMAIN)):
        value = given.get(name, "")
        if value and getattr(merged, field) not in ("", value):
            raise _twice(field, name)
        if value:
            setattr(merged, field, value)
    for name, number in _params(given):
        if merged.law_params.get(name, number) != number:
            raise _twice("law_params", MAX_DISTORTION if name == "max_distortion" else LAW_PARAMS)
        merged.law_params[name] = number
    return merged


def _given(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    given: dict[str, str] = {}
    for key, value in metadata:
        name = key.lower()
        if not name.startswith(_PREFIX):
            continue
        if name not in _KNOWN or not isinstance(value, str):
            sentence = f"{short(name)} is not known here; known: {', '.join(_KNOWN)}"
            raise InvalidRequestError(name[:80], sentence, Reason.UNKNOWN_PARAMETER)
        if given.setdefault(name, value) != value:
            raise InvalidRequestError(name, f"{name} is given twice, with different values")
    return given


def _params(given: dict[str, str]) -> list[tuple[str, float]]:
    params = []
    for pair in filter(str.strip, given.get(LAW_PARAMS, "").split(",")):
        name, _, text = pair.partition("=")
        params.append((name.strip(), _number(LAW_PARAMS, text)))
    if MAX_DISTORTION in given:
        params.append(("max_distortion", _number(MAX_DISTORTION, given[MAX_DISTORTION])))
    return params


def _number(header: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        how = "name=number, ..." if header == LAW_PARAMS else "a number"
        raise InvalidRequestError(header, f"{header} takes {how}; {short(text)} is no number") from None


def _twice(field: str, name: str) -> InvalidRequestError:
    return InvalidRequestError(field, f"{field} and {name} are given, with different values")
