"""Which plan is best: eligibility, predicted cost, comparison.

Pure arithmetic over snapshots of workers and prefix hits. Knows no Redis, no bus and no clock.
"""
