"""Puts `truedraft bench step` together: loads the model, measures, and reports."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel

from cluster.bench.machine import Machine, measure, weight_bytes
from cluster.bench.step.alone import BLOCK_TARGET, ROW_TARGET, Alone, alone
from cluster.bench.step.engine import Around, around
from cluster.bench.step.parts import Parts, Workload, texts, without_model
from cluster.checkpoints import DEFAULT_REFERENCE, load_model, resolve
from cluster.speculation.law import BLOCK, COUPLED, REJECTION, Law
from cluster.terminal import Output
from verifier_service.build import load_target
from verifier_service.spec import VerifierSpec

_LEAST_PAIRS = 15
_LAWS = {law.name: law for law in (COUPLED, REJECTION, BLOCK)}


@dataclass(frozen=True, slots=True)
class Shape:
    """sequences, rows: of the step; vocab: of random logits, None for the model's own; context: tokens before
    the step; repeats: times that each part is timed."""

    sequences: int
    rows: int
    vocab: int | None
    context: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Report:
    """Nothing but `parts` where there was no model. limit: seconds to read the weights, and the step's keys
    and values, once."""

    shape: Shape
    parts: tuple[Parts, ...]
    model: str = ""
    around: tuple[Around, ...] = ()
    alone: Alone | None = None
    machine: Machine | None = None
    weights: int = 0
    keys_and_values: int = 0

    @property
    def limit(self) -> float:
        bandwidth = self.machine.bandwidth if self.machine is not None else 0.0
        return (self.weights + self.keys_and_values) / bandwidth if bandwidth else 0.0


def run_step(model: str | None, shape: Shape, laws: Sequence[str], output: Output) -> None:
    """`truedraft bench step`. Raises CheckpointError; ValueError for another law than those."""
    unknown = [name for name in laws if name not in _LAWS]
    if unknown:
        raise ValueError(f"law must be one of {', '.join(_LAWS)}, got {unknown[0]!r}")
    chosen = [_LAWS[name] for name in laws] or list(_LAWS.values())
    report = measured(model or DEFAULT_REFERENCE, shape, chosen)
    output.give(as_json(report), lambda console: render(report, console))


def measured(reference: str, shape: Shape, laws: Sequence[Law]) -> Report:
    """Everything; with a vocabulary in the shape, no model is loaded."""
    if shape.vocab is not None:
        vocab = shape.vocab
        return Report(
            shape,
            tuple(without_model(law, shape.sequences, shape.rows, vocab, shape.repeats) for law in laws),
        )
    stock = load_model(resolve(reference), "float32", "cpu")
    weights, a_token = weight_bytes(list(stock.parameters())), _cache_bytes(stock)
    del stock
    loaded = load_target(VerifierSpec(model=reference))
    machine = measure()
    [stretch] = texts(loaded, 1, shape.context)
    single = alone(loaded.model, stretch, shape.rows, weights, max(_LEAST_PAIRS, shape.repeats))
    stretches = texts(loaded, shape.sequences, shape.context)
    workload = Workload(loaded.model, stretches, shape.rows)
    parts = tuple(workload.measure(law, shape.repeats) for law in laws)
    workload.close()
    return Report(
        shape,
        parts,
        reference,
        tuple(around(loaded, laws, stretches, shape.rows)),
        single,
        machine,
        weights,
        a_token * shape.sequences * (shape.context + shape.rows - 1),
    )


def _cache_bytes(stock: PreTrainedModel) -> int:
    """Bytes of the keys and values of one token."""
    config = stock.config.get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * size * stock.dtype.itemsize)


def render(report: Report, console: Console) -> None:
    """A column for each law, in milliseconds and shares of the forward."""
    shape = report.shape
    title = f"One verify step of {shape.sequences} sequences x {shape.rows} rows at temperature 1"
    table = Table("part", title=title)
    for each in report.parts:
        table.add_column(each.law, justify="right")

    def row(name: str, seconds: Sequence[float]) -> None:
        forwards = [each.forward for each in report.parts]
        cells = (
            f"{1e3 * s:.1f} ms" + (f"  {100 * s / f:5.1f} %" if f else "")
            for s, f in zip(seconds, forwards, strict=True)
        )
        table.add_row(name, *cells)

    if report.model:
        row("forward", [each.forward for each in report.parts])
    row("transforms", [each.transforms for each in report.parts])
    row("verification, noise included", [each.verification for each in report.parts])
    row("  of which noise", [each.noise for each in report.parts])
    row("transforms, noise, verification", [each.deciding for each in report.parts])
    if report.around:
        row("audit", [each.audit for each in report.around])
        row("bookkeeping", [each.bookkeeping for each in report.around])
    drafts = shape.sequences * (shape.rows - 1)
    table.add_row("drafts accepted", *(f"{each.accepted} of {drafts}" for each in report.parts))
    console.print(table)
    machine = report.machine
    if machine is None:
        console.print(f"No model: random logits of {shape.vocab} tokens.")
        return
    if report.alone is not None:
        console.print(_single(report.alone))
    fastest = min(each.forward for each in report.parts)
    console.print(
        f"Limit: {report.weights / 1e6:.0f} MB of weights and {report.keys_and_values / 1e6:.0f} MB of keys "
        f"and values at {machine.bandwidth / 1e9:.1f} GB/s take {1e3 * report.limit:.1f} ms; the forward "
        f"takes {fastest / report.limit:.1f} times as long.\n"
        f"{report.model}, {machine.processor}, {machine.threads} threads, torch {machine.torch}."
    )


def _single(alone: Alone) -> str:
    one, block, reading = (1e3 * statistics.median(each) for each in (alone.one, alone.block, alone.reading))
    over_row, over_reading = alone.block_over_row, alone.row_over_reading
    return (
        f"One sequence: {one:.1f} ms for 1 row, {block:.1f} for {alone.rows}, {reading:.1f} to read the "
        f"weights once.\n{alone.rows} rows over 1: {over_row}, at most {BLOCK_TARGET}: "
        f"{over_row.at_most(BLOCK_TARGET)}; 1 row over reading: {over_reading}, at most {ROW_TARGET}: "
        f"{over_reading.at_most(ROW_TARGET)}."
    )


def as_json(report: Report) -> dict[str, Any]:
    """For machines; seconds and bytes."""
    return asdict(report) | {"limit": report.limit}
