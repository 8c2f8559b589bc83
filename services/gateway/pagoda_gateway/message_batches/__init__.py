"""Anthropic's Message Batches: a second face of batches, whose rows, files and runner are the same.

Knows rows and lines. Knows no HTTP, and not who runs them.
"""
