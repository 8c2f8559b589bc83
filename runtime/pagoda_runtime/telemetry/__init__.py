"""Traces, metrics and log lines of one process."""
