"""One step: its inputs, its launch or its graph, its commit, its results."""
