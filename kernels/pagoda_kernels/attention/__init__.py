"""Attention over the paged KV: decodes and prefills in one batch, and latent attention (MLA).

Owns the batch of an attention call, its plan and the rule that scores keys. Knows where blocks lie.
Knows nothing of models, of what wrote the KV, or of who owns a block.
"""
