"""Gates of feed-forward layers, SwiGLU and its clamped form and GEGLU, on joined gate and up.

Knows nothing of the matmuls around them.
"""
