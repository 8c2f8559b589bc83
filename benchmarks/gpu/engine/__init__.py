"""The engine: the tokens of tiny checkpoints first, then the speed of real shapes."""
