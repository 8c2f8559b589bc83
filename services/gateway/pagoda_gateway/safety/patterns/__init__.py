"""Patterns in text, linear in its length, found also where a stream is cut into pieces."""
