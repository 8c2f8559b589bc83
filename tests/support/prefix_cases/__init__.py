"""Labelled pairs of prompts: what the second one misses of the first one, and why.

`scores` judges the gateway's explanations by them; `case` says what one is, three
modules make them.
"""
