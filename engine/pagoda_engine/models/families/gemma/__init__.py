"""Gemma: one file for those that are alike."""
