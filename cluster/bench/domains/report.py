"""`truedraft bench domains`: the tables on the terminal, as JSON and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cluster.bench.domains.rounds import Found
from cluster.bench.domains.traffic import Weighted, weighted
from cluster.bench.statistics import Mean, geometric_mean
from cluster.pictures import drawing

# Of a contender that is n-grams or another drafter, whichever promises more.
CHOICE = "ngram or "


@dataclass(frozen=True, slots=True)
class Size:
    """per_domain: prompts whose acceptance is counted; timed: those that are timed; tokens: the most of an
    answer; block_length, block_width: drafts of a round, one after another and at each position, at most
    where the planner chooses."""

    per_domain: int
    timed: int
    tokens: int
    block_length: int
    temperatures: tuple[float, ...]
    block_width: int = 1


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured; prompts: how many by domain; seconds: how long it took; traffic: tokens
    by domain, if given."""

    model: str
    size: Size
    prompts: Mapping[str, int]
    seconds: float
    found: tuple[Found, ...]
    traffic: Mapping[str, float] | None

    @property
    def groups(self) -> dict[tuple[str, float], list[Found]]:
        """By drafter and temperature, each over all domains."""
        groups: dict[tuple[str, float], list[Found]] = {}
        for each in self.found:
            groups.setdefault((each.drafter, each.temperature), []).append(each)
        return groups


@dataclass(frozen=True, slots=True)
class Summary:
    """Over domains, each counting alike. length: mean acceptance length of those where something was drafted;
    ratio: geometric mean of the speeds against none; traffic: weighted by a deployment's tokens."""

    drafter: str
    temperature: float
    length: float | None
    ratio: float | None
    traffic: Weighted | None


def summaries(report: Report) -> list[Summary]:
    """One for each drafter and temperature."""
    found = []
    for (drafter, temperature), group in report.groups.items():
        lengths = [a.length.mean for each in group if (a := each.acceptance) is not None and a.length]
        overall = {
            each.domain: a.overall.mean for each in group if (a := each.acceptance) is not None and a.overall
        }
        ratios = [each.speed.ratio.mean for each in group if each.speed is not None]
        mix = weighted(report.traffic, overall) if report.traffic is not None and overall else None
        found.append(
            Summary(
                drafter,
                temperature,
                sum(lengths) / len(lengths) if lengths else None,
                geometric_mean(ratios) if ratios else None,
                mix,
            )
        )
    return found


def as_json(report: Report) -> dict[str, Any]:
    """Everything that was measured, for machines."""
    return {
        "model": report.model,
        "size": asdict(report.size),
        "prompts": dict(report.prompts),
        "seconds": report.seconds,
        "found": [asdict(each) for each in report.found],
        "summaries": [asdict(each) for each in summaries(report)],
        "traffic": dict(report.traffic) if report.traffic is not None else None,
    }


def render(report: Report, console: Console) -> None:
    """A table for each drafter and temperature, then a summary."""
    size = report.size
    for (drafter, temperature), group in report.groups.items():
        choice = ("on / better of off, n-gram",) if drafter.startswith(CHOICE) else ()
        table = Table(
            "domain",
            "acceptance length",
            "undrafted",
            f"accepted at 1 … {size.block_length}",
            "tokens/s off",
            "on",
            "on / off",
            "off by choice",
            *choice,
            title=f"{drafter}, temperature {temperature:g}",
        )
        for each in group:
            better = each.speed.better if each.speed is not None else None
            compared = _interval(better) if better is not None else "–"
            table.add_row(each.domain, *_accepted(each), *_timed(each), *([compared] if choice else []))
        console.print(table)
    table = Table(
        "drafter", "temperature", "mean acceptance length", "on / off, geometric mean", title="Over domains"
    )
    for summary in summaries(report):
        shown = [f"{value:.2f}" if value is not None else "–" for value in (summary.length, summary.ratio)]
        table.add_row(summary.drafter, f"{summary.temperature:g}", *shown)
    console.print(table)
    for summary in summaries(report):
        if summary.traffic is not None:
            share, length = summary.traffic.measured, summary.traffic.length
            there = f"; there a round gives {length:.2f} tokens" if length is not None else ""
            console.print(
                f"{summary.drafter} at {summary.temperature:g}: {share:.0%} of the traffic's tokens are in "
                f"domains that were measured{there}",
                soft_wrap=True,
            )
    blocks = f"{size.block_length} × {size.block_width}" if size.block_width > 1 else f"{size.block_length}"
    console.print(
        f"{report.model}: {_range(report.prompts)} prompts a domain, at most {size.timed} timed, answers of "
        f"at most {size.tokens} tokens, blocks of {blocks}; acceptance over rounds with a draft, "
        f"intervals of 95 %; {report.seconds:.0f} s",
        soft_wrap=True,
    )


def _range(prompts: Mapping[str, int]) -> str:
    least, most = min(prompts.values()), max(prompts.values())
    return f"{least}" if least == most else f"{least} to {most}"


def _interval(mean: Mean) -> str:
    return f"{mean.mean:.2f} [{mean.low:.2f}, {mean.high:.2f}]"


def _accepted(each: Found) -> tuple[str, str, str]:
    found = each.acceptance
    if found is None:
        return "–", "–", "–"
    positions = " ".join(f"{share:.2f}".removeprefix("0") for share in found.by_position)
    return _interval(found.length) if found.length else "–", f"{found.undrafted_share:.0%}", positions


def _timed(each: Found) -> tuple[str, str, str, str]:
    speed = each.speed
    if speed is None:
        return "–", "–", "–", "–"
    return (
        f"{speed.plain:.1f}",
        f"{speed.drafting:.1f}",
        _interval(speed.ratio),
        f"{speed.switched_off_share:.0%}",
    )


def draw(report: Report, path: Path) -> None:
    """Acceptance length by domain with intervals, and speed against none, of every drafter and temperature.
    Raises ValueError or OSError for a file that cannot be drawn."""
    domains = list(dict.fromkeys(each.domain for each in report.found))
    with drawing(path, 11, 1.6 + 0.45 * len(domains)) as figure:
        left, right = figure.subplots(1, 2)
        groups = report.groups
        for number, ((drafter, temperature), group) in enumerate(groups.items()):
            shift = (number + 0.5) / len(groups) - 0.5
            at = {domain: index - 0.7 * shift for index, domain in enumerate(domains)}
            label, colour = f"{drafter}, T = {temperature:g}", f"C{number % 10}"
            for axes, means in (
                (left, {e.domain: e.acceptance.length for e in group if e.acceptance is not None}),
                (right, {e.domain: e.speed.ratio for e in group if e.speed is not None}),
            ):
                known = {domain: mean for domain, mean in means.items() if mean is not None}
                if known:
                    ends = [
                        [max(0.0, m.mean - m.low) for m in known.values()],
                        [max(0.0, m.high - m.mean) for m in known.values()],
                    ]
                    axes.errorbar(
                        [m.mean for m in known.values()],
                        [at[domain] for domain in known],
                        xerr=ends,
                        fmt="o",
                        markersize=4,
                        color=colour,
                        label=label,
                    )
        left.set(xlabel="tokens emitted in a round with a draft")
        right.set(xlabel="tokens a second, against none")
        for axes, nothing in ((left, 1.0), (right, 1.0)):
            axes.axvline(nothing, color="0.6", linewidth=0.8)
            axes.set_yticks(range(len(domains)), domains)
            axes.invert_yaxis()
        # Where nothing was timed, the left half says it all.
        right.set_visible(bool(right.get_legend_handles_labels()[0]))
        last = right if right.get_visible() else left
        if last.get_legend_handles_labels()[0]:
            last.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
