"""The oracle of the golden tests: Hugging Face transformers on the CPU in float32."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from pagoda.engine import EngineConfig, LoadedModel, load_model

logging.disable_progress_bar()


class Oracle:
    """One checkpoint as transformers and the engine load it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model: LoadedModel = load_model(
            folder, EngineConfig(dtype="float32", max_model_len=512)
        )
        self.reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._greedy: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Return ``[T, V]``."""
        with torch.no_grad():
            return self.reference(torch.tensor([token_ids])).logits[0]

    def greedy(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        """Return the tokens of `generate` without a stop token."""
        key = (tuple(prompt), max_tokens)
        if key not in self._greedy:
            with torch.no_grad():
                tokens = self.reference.generate(
                    torch.tensor([prompt]),
                    attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                    do_sample=False,
                    max_new_tokens=max_tokens,
                    min_new_tokens=max_tokens,
                    eos_token_id=None,
                    pad_token_id=0,
                )
            self._greedy[key] = tokens[0, len(prompt) :].tolist()
        return self._greedy[key]
