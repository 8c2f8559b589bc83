"""Router: where a sequence should run, by predicted cost."""
