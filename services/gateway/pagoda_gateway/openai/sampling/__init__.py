"""How tokens are drawn or searched: what a body and a model's files say, as the engine takes it."""
