"""What long checks that resume are told on their command line."""

from __future__ import annotations

import argparse
from pathlib import Path


def arguments(description: str | None, out: Path) -> argparse.ArgumentParser:
    """--out, --minutes and --model, which every such check takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--model", default="smollm2-135m-instruct")
    return parser
