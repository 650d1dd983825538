"""Whether, how long and with whom to draft, decided from the past alone. Pure."""

from cluster.scheduling.budgeted import BudgetedPlanner
from cluster.scheduling.calibration import Calibration
from cluster.scheduling.choice import choose
from cluster.scheduling.cost import DraftCost, VerifyCost
from cluster.scheduling.fixed import FixedPlanner
from cluster.scheduling.goodput import GoodputPlanner
from cluster.scheduling.history import Experience, History, Round
from cluster.scheduling.planner import Budget, Frontier, Planner
from cluster.scheduling.registry import PlannerName, planner_of

__all__ = [
    "Budget",
    "BudgetedPlanner",
    "Calibration",
    "DraftCost",
    "Experience",
    "FixedPlanner",
    "Frontier",
    "GoodputPlanner",
    "History",
    "Planner",
    "PlannerName",
    "Round",
    "VerifyCost",
    "choose",
    "planner_of",
]
