"""JSON schemas: which hold, what they are for llguidance, and where it refuses them."""
