"""What a proposed token saves, and how likely one must be to be worth its row in a step."""

from pagoda_engine.scheduler.step_cost import StepCost

MARGIN = 1.5
"""A proposed token must be expected to save so many times what it costs: both are estimates."""
LEAST_OVERLAPPED = 1.25
"""Proposals that must be right on average where a sequence sits out a step to be verified."""


def saving(num_decodes: int, num_proposing: int, cost: StepCost) -> float:
    """Return what a right token saves where so many of a step's decodes have tokens proposed.

    A decode, and its part of what a step takes anyway; but the others, who have none, need their
    steps all the same. So that part is the smaller the more they are: what all propose saves steps,
    and what one of many proposes none.
    """
    share = num_proposing / num_decodes
    return cost.base / num_decodes * share * share + cost.per_decode


def least_probability(num_decodes: int, num_proposing: int, cost: StepCost) -> float:
    """Return how likely a token must be, above 0, to be verified in a step of these decodes."""
    saved = saving(num_decodes, num_proposing, cost)
    return max(1e-9, MARGIN * cost.proposed(num_decodes) / saved) if saved else 1.0
