"""Which plan is best: eligibility, predicted cost, comparison. Pure arithmetic."""
