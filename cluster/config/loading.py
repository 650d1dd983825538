"""A configuration from a YAML file, `--set` overrides and flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from cluster.config.cluster import ClusterConfig


class ConfigError(ValueError):
    """The configuration cannot be used; the message is one sentence that names the field."""


def load_config(
    path: Path | None = None, overrides: Sequence[str] = (), flags: Mapping[str, Any] | None = None
) -> ClusterConfig:
    """Later ones win: the YAML file, `a.b=value` overrides with values in YAML, flags by dotted name.

    Raises ConfigError.
    """
    document = _read(path) if path else {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{override!r} is not of the form section.field=value.")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"{name}: {text!r} is not a YAML value.") from None
        _put(document, name.strip(), value)
    for name, value in (flags or {}).items():
        _put(document, name, value)
    return parse_config(document)


def parse_config(document: Mapping[str, Any]) -> ClusterConfig:
    """A configuration as it comes from YAML. Raises ConfigError."""
    try:
        return ClusterConfig.model_validate(document)
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must hold a mapping of fields, not a {type(document).__name__}.")
    # A section whose fields are all commented out is null.
    return {name: value for name, value in document.items() if value is not None}


def _put(document: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, name = dotted.split(".")
    for section in sections:
        inner = document.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{dotted}: {section} is a value, not a section.")
        document = inner
    document[name] = value


def _sentence(error: ValidationError) -> str:
    """The first problem, as one sentence that names the field."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"]) or "configuration"
    if problem["type"] == "extra_forbidden":
        return f"{where} is not a field of the configuration."
    if problem["type"] == "tuple_type":
        return f"{where}: should be a list, such as [{problem['input']}]."
    if problem["type"] == "model_type":
        return f"{where}: should be a section with fields, not {problem['input']!r}."
    text = problem["msg"].removeprefix("Value error, ")
    given = "" if problem["type"] == "value_error" else f" (got {problem['input']!r})"
    return f"{where}: {text[:1].lower()}{text[1:]}{given}."
