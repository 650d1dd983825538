"""Whether and how long to draft, decided from the past alone. Pure."""

from cluster.scheduling.fixed import FixedPlanner
from cluster.scheduling.planner import Frontier, History, Planner

__all__ = ["FixedPlanner", "Frontier", "History", "Planner"]
