"""Gates of feed-forward layers, SwiGLU, clamped or not, and GEGLU, on a joined gate and up projection.

Knows nothing of the matmuls around them.
"""
