"""Settings from the environment, and the model folder that they name."""
