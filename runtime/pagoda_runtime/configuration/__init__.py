"""Settings from the environment, and what they name: the model's folder, the topology."""
