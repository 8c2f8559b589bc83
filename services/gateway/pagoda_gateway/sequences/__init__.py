"""Sequences from their placement to their last token: frames in, failover. Knows no HTTP."""
