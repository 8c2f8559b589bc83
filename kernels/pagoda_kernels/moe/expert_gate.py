"""What becomes of an expert's gate and up."""

from typing import Literal

from pagoda_kernels.gate.clamped_swiglu import ClampedSwiglu

ExpertGate = ClampedSwiglu | Literal["silu", "gelu_tanh"]
"""That rule; or ``activation(gate) * up``, with the approximation of GELU."""
