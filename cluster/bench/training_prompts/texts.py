"""Passages and functions from what is installed here: documentation of packages and of the system."""

from __future__ import annotations

import ast
import gzip
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_DOCUMENTS = Path("/usr/share/doc")
# Characters of a passage: enough to work on, few enough for a prompt.
_LEAST, _MOST = 160, 560
_PARAGRAPH = re.compile(r"\n\s*\n")
_MARKUP = re.compile(r"[`*_#>|=<\\]|--|::|http")


def passages(rng: random.Random, count: int) -> list[str]:
    """Paragraphs of prose."""
    packages = Path(sysconfig.get_path("purelib"))
    files = [
        *packages.glob("*.dist-info/METADATA"),
        *_DOCUMENTS.glob("*/README*"),
        *_DOCUMENTS.glob("*/copyright"),
    ]
    found = {text for file in files for text in _prose(file)}
    for file in sorted(packages.glob("*/*.py")):
        found.update(_docstrings(file))
    return _some(rng, found, count)


def functions(rng: random.Random, count: int) -> list[str]:
    """Short functions of installed packages."""
    packages = Path(sysconfig.get_path("purelib"))
    files = _some(rng, {str(path) for path in packages.glob("*/*.py")}, 4 * count)
    return _some(rng, {text for file in files for text in _functions(Path(file))}, count)


def _some(rng: random.Random, found: set[str], count: int) -> list[str]:
    ordered = sorted(found)
    return rng.sample(ordered, min(count, len(ordered)))


def _read(file: Path) -> str:
    try:
        data = file.read_bytes()
        return (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8")
    except (OSError, UnicodeDecodeError, EOFError):
        return ""


def _prose(file: Path) -> Iterator[str]:
    yield from _paragraphs(_read(file))


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in _PARAGRAPH.split(text):
        line = " ".join(paragraph.split())
        if (
            _LEAST <= len(line) <= _MOST
            and line[0].isupper()
            and line.endswith(".")
            and not _MARKUP.search(line)
        ):
            yield line


def _docstrings(file: Path) -> Iterator[str]:
    tree = _tree(file)
    if tree is not None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield from _paragraphs(ast.get_docstring(node) or "")


def _functions(file: Path) -> Iterator[str]:
    source, tree = _read(file), _tree(file)
    if tree is not None:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.col_offset == 0:
                text = ast.get_source_segment(source, node) or ""
                if _LEAST <= len(text) <= _MOST and text.count("\n") > 3:
                    yield text


def _tree(file: Path) -> ast.Module | None:
    try:
        return ast.parse(_read(file))
    except (SyntaxError, ValueError, RecursionError):
        return None
