"""Answers kept for requests that are equal to the last bit, and would be answered the same."""
