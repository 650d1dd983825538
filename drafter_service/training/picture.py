"""The learning curve as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from cluster.pictures import drawing
from drafter_service.training.trainer import Point


def draw(curve: Sequence[Point], path: Path) -> None:
    """Losses, and tokens a round on held-out greedy texts, over minutes of training."""
    with drawing(path, 9, 3.4) as figure:
        left, right = figure.subplots(1, 2)
        minutes = [point.minutes for point in curve]
        left.plot(minutes, [point.loss for point in curve], label="trained on")
        if not all(math.isnan(point.held_out) for point in curve):
            left.plot(minutes, [point.held_out for point in curve], label="held out")
        left.set(xlabel="minutes of training", ylabel="loss")
        left.legend()
        right.plot(minutes, [point.acceptance for point in curve])
        right.set(xlabel="minutes of training", ylabel="tokens a round, held out, greedy", ylim=(1, None))
