"""The long check of row invariance: thousands of positions of a real model, bit for bit.

A text is decoded one row at a time, as plain decoding does, and again in blocks of several sizes, in chunks
of a prompt, and after pages that another sequence computed. Every row's logits must be the same bits:

    python -m cluster.checks.rows --positions 2000
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from cluster.bench.prompts import VARIED
from cluster.checkpoints import DEFAULT_REFERENCE
from cluster.kernels.attention import PAGE
from verifier_service.build import LoadedTarget, load_target
from verifier_service.cache.kv_cache import SequenceCache
from verifier_service.cache.prefixes import PageNames
from verifier_service.spec import VerifierSpec
from verifier_service.target.target import Rows, TargetModel

# Rows of a step: blocks of drafts, then chunks of prompts.
SIZES = (2, 5, 9, 17, 64, 300)


def differing(loaded: LoadedTarget, positions: int, sizes: Sequence[int] = SIZES) -> dict[str, list[int]]:
    """For each way to compute them, the positions whose logits are not those of single rows."""
    target, text = loaded.model, _text(loaded, positions)
    pool = target.new_pool(3 * (positions + PAGE))
    first = pool.open()
    single = torch.cat([_rows(target, first, text, at, at + 1) for at in range(positions)])
    found = {}
    for size in sizes:
        cache = pool.open()
        found[f"{size} rows"] = [
            wrong
            for at in range(0, positions, size)
            for wrong in _unequal(_rows(target, cache, text, at, at + size), single[at : at + size], at)
        ]
        cache.release()
    # Pages of single rows, which a prompt goes on from at every other page.
    names = PageNames("rows", "")
    first.length = positions
    first.name(names, text)
    wrong: list[int] = []
    for start in range(PAGE, positions, 2 * PAGE):
        cache = pool.open()
        cache.adopt(names, text, start)
        assert cache.length == start
        stop = min(positions, start + 2 * PAGE)
        wrong += _unequal(_rows(target, cache, text, start, stop), single[start:stop], start)
        cache.release()
    found["pages of others"] = wrong
    return found


def _text(loaded: LoadedTarget, positions: int) -> list[int]:
    tokens = list(loaded.tokenizer("\n\n".join(VARIED))["input_ids"])
    return (tokens * (1 + positions // len(tokens)))[:positions]


def _rows(target: TargetModel, cache: SequenceCache, text: list[int], start: int, stop: int) -> Tensor:
    tokens = text[start:stop]
    [logits] = target.forward([Rows(cache, tokens, start, len(tokens))])
    return logits


def _unequal(logits: Tensor, expected: Tensor, start: int) -> list[int]:
    """Bits are compared: what is equal but for the sign of a zero is not the same."""
    same = (logits.view(torch.int32) == expected.view(torch.int32)).all(dim=-1)
    return [start + int(index) for index in (~same).nonzero()[:, 0]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a row differs, 0 if none does."""
    parser = argparse.ArgumentParser(description="Rows of logits, bit for bit.")
    parser.add_argument("--positions", type=int, default=2000)
    parser.add_argument("--model", default=DEFAULT_REFERENCE)
    options = parser.parse_args(arguments)
    found = differing(load_target(VerifierSpec(model=options.model)), options.positions)
    for way, wrong in found.items():
        sys.stdout.write(f"{way}: {len(wrong)} of {options.positions} rows differ from single ones\n")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
