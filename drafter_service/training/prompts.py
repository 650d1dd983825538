"""Prompts to train on: a file of JSON lines, as a user writes it or the gateway logs it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

# One answer of so many is held out; of a short file this share at least, up to so many.
_HELD_OUT = 16
_SHORT, _FEW = 8, 4


class PromptsError(ValueError):
    """A file of prompts that cannot be used; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """messages: role and content; domain: what its acceptance is counted under."""

    messages: tuple[tuple[str, str], ...]
    domain: str

    @property
    def drawn(self) -> int:
        """A number that follows from its text alone."""
        return int.from_bytes(hashlib.sha256(json.dumps(self.messages).encode()).digest()[:4], "big")


def held_out(prompts: Sequence[Prompt]) -> frozenset[Prompt]:
    """Those that are measured on and never trained on: chosen by their own text, one in sixteen, so that a
    file that grows keeps them; of a short file, where chance may choose none, one in eight up to four."""
    by_chance = [prompt for prompt in prompts if prompt.drawn % _HELD_OUT == 0]
    others = sorted((p for p in prompts if p.drawn % _HELD_OUT), key=lambda prompt: prompt.drawn)
    lacking = max(0, min(_FEW, len(prompts) // _SHORT) - len(by_chance))
    return frozenset([*by_chance, *others[:lacking]])


def read_prompts(path: Path) -> list[Prompt]:
    """Each line an object with `prompt` (a string) or `messages` (role and content), and perhaps `domain`.

    Prompts that occur twice are taken once. Raises PromptsError with the line's number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptsError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from error
    found: dict[Prompt, None] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found[_prompt(json.loads(line))] = None
            except (ValueError, TypeError, KeyError) as error:
                raise PromptsError(f"{path}, line {number}: {error}") from error
    if not found:
        raise PromptsError(f"{path} has no prompts")
    return list(found)


def _prompt(entry: Any) -> Prompt:
    if not isinstance(entry, dict):
        raise ValueError("not an object")
    if unknown := set(entry) - {"prompt", "messages", "domain"}:
        raise ValueError(f"unknown field {sorted(unknown)[0]!r}")
    if ("prompt" in entry) == ("messages" in entry):
        raise ValueError("either prompt or messages is needed")
    turns = entry.get("messages", [{"role": "user", "content": entry.get("prompt")}])
    messages = tuple((turn["role"], turn["content"]) for turn in turns)
    domain = entry.get("domain", "")
    if not messages or not all(isinstance(text, str) and text for turn in messages for text in turn):
        raise ValueError("role and content are strings that are not empty")
    if not isinstance(domain, str):
        raise ValueError("domain is a string")
    return Prompt(messages, domain)


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """The ids that the target answers after, through its chat template where it has one."""
    if tokenizer.chat_template is None:
        return list(tokenizer.encode("\n".join(content for _, content in prompt.messages)))
    turns = [{"role": role, "content": content} for role, content in prompt.messages]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(str(text), add_special_tokens=False))


def by_domain(prompts: Sequence[Prompt]) -> dict[str, list[Prompt]]:
    """In the order of their first occurrence."""
    domains: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        domains.setdefault(prompt.domain, []).append(prompt)
    return domains
