"""`pagoda chat`: talk to a model in the terminal. Knows the OpenAI API, and no Pagoda service."""
