"""Low-rank adapters, a different one for every token. Knows nothing of how they are loaded."""
