"""Compile the sampling kernels as they are launched, for a vocabulary of 128 k tokens.

Run as a script without TRITON_INTERPRET; prints one JSON object per compiled kernel.
"""

import torch
from compile_for_gpu import compile_each

from pagoda_kernels.sampling.rows import SamplingRows, plan_sampling, sampling_column
from pagoda_kernels.sampling.triton.penalise_logits import penalise_logits
from pagoda_kernels.sampling.triton.sample_tokens import sample_tokens

VOCAB_SIZE = 128256


def compile_sampling(dtype: torch.dtype) -> None:
    """All kernels for two rows."""
    logits = torch.zeros(2, VOCAB_SIZE, dtype=dtype)
    greedy = sampling_column(temperature=0.0, top_k=5, min_p=0.1, seed=2)

    def plan(typical_p: float = 1.0) -> SamplingRows:
        drawn = sampling_column(top_p=0.9, seed=1, typical_p=typical_p)
        return plan_sampling([drawn, greedy], [3, 4], torch.device("cpu"))

    counts, factors = torch.zeros(2, VOCAB_SIZE), torch.ones(2)

    def launches() -> None:
        sample_tokens(logits, plan())
        sample_tokens(logits, plan(typical_p=0.9))
        penalise_logits(logits, counts, counts > 0, factors, factors, factors)

    compile_each(f"V{VOCAB_SIZE} {dtype}", launches)


if __name__ == "__main__":
    compile_sampling(torch.float32)
    compile_sampling(torch.bfloat16)
