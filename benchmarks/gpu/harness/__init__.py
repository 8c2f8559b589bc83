"""Runs points in worker processes, saves their rows, prints tables. Knows nothing of subjects."""
