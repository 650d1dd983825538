"""Every peer answers the same prompts in turn, so that each ratio is of neighbours in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.bench.machine import median
from cluster.bench.prompts import KINDS, VARIED
from cluster.bench.speed.peer import Peer, Reply
from cluster.bench.statistics import Ratio, geometric_mean, paired_ratio

CLUSTER, PLAIN = "cluster n-gram", "cluster none"
TRAINED = "in-process coupled shipped drafter or n-gram"
GENERATE, VLLM = "transformers generate", "vLLM"


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts asked at a time; label: a kind, or how many."""

    label: str
    prompts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """A load's answers. seconds: to the end of the last one."""

    peer: str
    load: str
    repetition: int
    replies: tuple[Reply, ...]

    @property
    def seconds(self) -> float:
        return max(reply.seconds for reply in self.replies)

    @property
    def rate(self) -> float:
        """Tokens per second of all together."""
        return sum(reply.tokens for reply in self.replies) / self.seconds

    @property
    def first(self) -> float | None:
        """Seconds to the first text, the median; None where answers come as a whole."""
        known = [reply.first for reply in self.replies if reply.first is not None]
        return median(known) if known else None

    @property
    def per_token(self) -> float | None:
        """Seconds for each token after the first text, the median."""
        known = [
            (reply.seconds - reply.first) / (reply.tokens - 1)
            for reply in self.replies
            if reply.first is not None and reply.tokens > 1
        ]
        return median(known) if known else None


@dataclass(frozen=True, slots=True)
class Finding:
    """A ratio that was promised, and what was measured of it."""

    over: str
    under: str
    load: str
    factor: float
    ratio: Ratio

    @property
    def verdict(self) -> str:
        return self.ratio.against(self.factor)


def loads(concurrent: Sequence[int]) -> list[Load]:
    """One request of each kind by itself, then so many different ones at a time."""
    single = [Load(kind, (prompt,)) for kind, prompt in KINDS.items()]
    return single + [
        Load(str(count), tuple(_varied(number) for number in range(count))) for count in concurrent
    ]


def _varied(number: int) -> str:
    """Different prompts, of which each begins in its own way."""
    turn, which = divmod(number, len(VARIED))
    return f"Question {turn + 1}. {VARIED[which]}" if turn else VARIED[which]


def measure(
    peers: Sequence[Peer], given: Sequence[Load], tokens: int, pairs: int, progress: Callable[[str], None]
) -> list[Measured]:
    """Every peer under every load, `pairs` times, after one load of each that is not counted."""
    for peer in peers:
        progress(f"warming up {peer.name}")
        for load in (given[0], given[-1]):
            if _takes(peer, load):
                peer.ask(load.prompts, tokens)
    found = []
    for repetition in range(pairs):
        for load in given:
            # Nobody always follows the same neighbour.
            shift = repetition % len(peers)
            for peer in (*peers[shift:], *peers[:shift]):
                if _takes(peer, load):
                    progress(f"{repetition + 1}/{pairs} {load.label}: {peer.name}")
                    replies = tuple(peer.ask(load.prompts, tokens))
                    found.append(Measured(peer.name, load.label, repetition, replies))
    return found


def _takes(peer: Peer, load: Load) -> bool:
    return not peer.most or len(load.prompts) <= peer.most


def findings(measured: Sequence[Measured]) -> list[Finding]:
    """What was promised, of peers that took part."""
    present = {each.peer for each in measured}
    found = []
    for rival in (GENERATE, VLLM):
        if {CLUSTER, rival} <= present:
            found.append(_mean(measured, CLUSTER, rival, 1.3))
            found += [_finding(measured, CLUSTER, rival, kind, 1.0) for kind in KINDS]
        if {TRAINED, rival} <= present:
            found.append(_mean(measured, TRAINED, rival, 2.0))
    several = {each.load for each in measured} - set(KINDS)
    for load, factor in (("16", 1.3), ("64", 1.2)):
        if load in several and {CLUSTER, VLLM} <= present:
            found.append(_finding(measured, CLUSTER, VLLM, load, factor))
    return found


def _mean(measured: Sequence[Measured], over: str, under: str, factor: float) -> Finding:
    """Of one request at a time, over the kinds."""
    pairs = sorted({each.repetition for each in measured})
    means = [
        [geometric_mean([_rate(measured, peer, kind, i) for kind in KINDS]) for i in pairs]
        for peer in (over, under)
    ]
    return Finding(over, under, "geometric mean", factor, paired_ratio(*means))


def _finding(measured: Sequence[Measured], over: str, under: str, load: str, factor: float) -> Finding:
    pairs = sorted({each.repetition for each in measured})
    rates = [[_rate(measured, peer, load, i) for i in pairs] for peer in (over, under)]
    return Finding(over, under, load, factor, paired_ratio(*rates))


def _rate(measured: Sequence[Measured], peer: str, load: str, repetition: int) -> float:
    [one] = [m for m in measured if (m.peer, m.load, m.repetition) == (peer, load, repetition)]
    return one.rate
