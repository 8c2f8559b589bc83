"""Requests in flight: their sequences from placement to the last token, frames in, failover.

Knows no HTTP, no JSON and no database.
"""
