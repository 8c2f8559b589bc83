"""Formats of calls, one module for each family of models."""
