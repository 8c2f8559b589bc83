"""Rotary position embedding. Knows a table of angles. Knows nothing of how a model scales it."""
