"""What a checkpoint's tensors are called, where they come from, and how a family takes them."""
