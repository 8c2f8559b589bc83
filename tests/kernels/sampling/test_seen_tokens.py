import random

import numpy as np
import pytest
import torch

from pagoda_kernels.sampling import reference
from pagoda_kernels.sampling.seen_tokens import SeenTokens


@pytest.mark.parametrize("known", [0, 1, 30])
def test_penalties_are_those_of_the_reference_as_tokens_come(known: int) -> None:
    """Bit for bit, over a vocabulary of which most tokens come again."""
    rng, vocab_size = random.Random(known), 150
    for _ in range(3):
        prompt, output = (rng.choices(range(vocab_size), k=known) for _ in range(2))
        factors = rng.uniform(0.5, 2), rng.uniform(-1, 1), rng.uniform(-1, 1)
        named = dict(zip(("repetition", "frequency", "presence"), factors, strict=True))
        seen = SeenTokens(prompt, output, **named)
        in_prompt = torch.zeros(1, vocab_size, dtype=torch.bool)
        in_prompt[0, prompt] = True
        for _ in range(10):
            logits = 3 * torch.randn(1, vocab_size)
            counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=vocab_size)
            vectors = (torch.tensor([factor]) for factor in factors)
            want = reference.penalise_logits(logits, counts[None], in_prompt, *vectors)
            seen.penalise(logits[0].numpy())
            assert torch.equal(logits, want)
            for token_id in rng.choices(range(vocab_size), k=15):
                output.append(token_id)
                seen.add(token_id)
        assert sorted(seen.token_ids) == sorted({*prompt, *output})
        assert seen.counts.sum() == len(output)


def test_no_token_changes_nothing() -> None:
    logits = np.ones(5, np.float32)
    SeenTokens([], [], repetition=2.0, frequency=1.0, presence=1.0).penalise(logits)
    assert logits.tolist() == [1.0] * 5
