"""Requests in flight: their sequences from placement to the last token, frames in, failover.

Knows no HTTP, no API's bodies and no database.
"""
