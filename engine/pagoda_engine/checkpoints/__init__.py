"""Files of a model folder: configuration fields, tensors, identity.

Knows formats and how to read them fast. Knows no decoder, and no device but as where bytes go.
"""
