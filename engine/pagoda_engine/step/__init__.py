"""One step: `inputs` of a batch, `runner` or its graph, `launched`, `commit`, `result`.

Knows what is scheduled and how it is computed. Knows nothing of how a batch is chosen: the engine
leads it from one station to the next.
"""
