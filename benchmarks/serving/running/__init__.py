"""What is started to be measured: models, stacks, servers alone."""
