"""Triton kernels of attention: decodes in splits, prefills in tiles, latent attention of both."""
