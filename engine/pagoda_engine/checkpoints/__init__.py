"""Files of a model folder: configuration fields, tensors, identity. Knows no decoder."""
