"""Pictures of figures, all in one style."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def drawing(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure to draw on, written afterwards to `path` in the format of its ending. width, height: inches.

    Raises ValueError for an unknown format, OSError for a file that cannot be written.
    """
    # Takes a second to import, and only pictures need it.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style = mpl.rc_context(
        {
            "axes.spines.right": False,
            "axes.spines.top": False,
            "font.size": 9,
            "legend.frameon": False,
            # Text stays text, and the same figures give the same file.
            "svg.fonttype": "none",
            "svg.hashsalt": "truedraft",
        }
    )
    with style:
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
