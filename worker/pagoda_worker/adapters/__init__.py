"""LoRA adapters of a worker: which are loaded, on whose word, and the file that says so."""
