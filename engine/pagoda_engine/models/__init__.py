"""Decoder models: what one is (`description`), how it is built, one forward for all of them."""
