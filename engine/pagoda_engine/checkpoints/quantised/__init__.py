"""Checkpoints whose weights are quantised already: which formats there are, what their codes mean.

Knows configurations and layouts. Knows no file, no decoder, and not how weights are held.
"""
