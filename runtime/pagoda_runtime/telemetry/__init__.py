"""Traces, metrics and log lines of one process.

Owns where they go and in what form. What is worth a span or a number is each service's business.
"""
