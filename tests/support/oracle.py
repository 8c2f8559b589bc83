"""The oracle of the golden tests: one checkpoint as transformers and as the engine load it."""

from collections.abc import Sequence
from pathlib import Path

import torch

from pagoda_engine import EngineConfig, LoadedModel, load_model
from support.greedy_oracle import GreedyOracle


class Oracle(GreedyOracle):
    """transformers' answers, and the engine's model beside them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.model: LoadedModel = load_model(
            folder, EngineConfig(dtype="float32", max_model_len=512)
        )

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Return ``[T, V]``."""
        with torch.no_grad():
            return self.reference(torch.tensor([token_ids])).logits[0]
