"""`pagoda chat`: talk to a model in the terminal."""
