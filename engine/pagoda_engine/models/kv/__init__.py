"""How a model's KV is held: as its activations, or in one byte an element with scales."""
