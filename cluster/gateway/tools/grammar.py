"""The language of answers that may hold calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cluster.gateway.tools.offer import Function, Offer
from cluster.gateway.tools.wording import BEGIN, head, tail

# As json.dumps separates, with no other white space: the schema alone bounds the length of the arguments.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def grammar_of_calls(offer: Offer) -> str:
    """In llguidance's Lark. Calls come after the text, and nothing after them."""
    another = json.dumps(f"\n{BEGIN}")
    calls = f"call ({another} call)*" if offer.parallel else "call"
    rules = [
        "%llguidance {}",
        f"start: {json.dumps(BEGIN)} {calls}" if offer.required else f"start: TEXT | begin {calls}",
        # Text of its own has no call in it; before a call it ends where the first one begins.
        f"TEXT: /(?s:.*)/ & ~/(?s:.*){BEGIN}(?s:.*)/",
        f"begin[lazy]: /(?s:.*){BEGIN}/",
        f"call: {' | '.join(f'call_{index}' for index in range(len(offer.callable)))}",
        *(f"call_{index}: {_call(function)}" for index, function in enumerate(offer.callable)),
    ]
    return "\n".join(rules) + "\n"


def _call(function: Function) -> str:
    """What comes after BEGIN."""
    schema = json.dumps(_spaced(function.parameters))
    return f"{json.dumps(head(function.name))} %json {schema} {json.dumps(tail())}"


def _spaced(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema, "x-guidance": _SPACING}
