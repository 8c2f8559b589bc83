"""CPU paths: torch operators arranged so that no Python loop runs per token."""
