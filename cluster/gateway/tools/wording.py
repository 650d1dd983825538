"""How a call is written in an answer: the way of Hermes, Qwen and SmolLM, which others are taught in words.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

JSON as `json.dumps` writes it: templates show earlier calls like this, and no line break can be in it.
"""

from __future__ import annotations

import json
import re

BEGIN = "<tool_call>"
CLOSE = "</tool_call>"
# Between the arguments and what closes the call.
TAIL = "}\n"
# What names are made of, as with OpenAI.
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# After BEGIN, up to where the arguments begin.
HEAD = re.compile(rf'\n\{{"name": "({NAME.pattern})", "arguments": ')


def head(name: str) -> str:
    """A call after BEGIN, up to where its arguments begin."""
    return f'\n{{"name": "{name}", "arguments": '


def tail() -> str:
    """A call from where its arguments end."""
    return f"{TAIL}{CLOSE}"


def written(name: str, arguments: object) -> str:
    """A whole call."""
    return f"{BEGIN}{head(name)}{json.dumps(arguments, ensure_ascii=False)}{tail()}"
