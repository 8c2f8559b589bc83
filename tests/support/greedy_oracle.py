"""What transformers generates without chance, on the CPU in float32: all topologies repeat it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

logging.disable_progress_bar()


def auto_class(config: PretrainedConfig) -> Any:
    """Return what makes and loads a model that generates text, of this configuration."""
    if config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return AutoModelForCausalLM
    return AutoModelForImageTextToText


class GreedyOracle:
    """One checkpoint as transformers loads it; answers are remembered."""

    def __init__(self, folder: Path) -> None:
        auto = auto_class(AutoConfig.from_pretrained(folder))
        self.reference = auto.from_pretrained(folder, dtype=torch.float32).eval()
        self._answers: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def greedy(
        self, prompt: Sequence[int], max_tokens: int, *, guess: Sequence[int] = ()
    ) -> list[int]:
        """Return exactly `max_tokens` tokens; no stop token ends them.

        A guess that is right takes one forward pass in place of one for each token.
        """
        key = (tuple(prompt), max_tokens)
        if key not in self._answers:
            if len(guess) == max_tokens and self._is_greedy(prompt, guess):
                self._answers[key] = list(guess)
                return self._answers[key]
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
            self._answers[key] = tokens[0, len(prompt) :].tolist()
        return self._answers[key]

    def all_greedy(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, guesses: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Return what `greedy` does of each prompt."""
        return [
            self.greedy(prompt, max_tokens, guess=guess)
            for prompt, guess in zip(prompts, guesses, strict=True)
        ]

    def _is_greedy(self, prompt: Sequence[int], tokens: Sequence[int]) -> bool:
        """Whether each token is the likeliest behind the prompt and those before it."""
        with torch.no_grad():
            logits = self.reference(torch.tensor([[*prompt, *tokens[:-1]]])).logits[0]
        return logits[len(prompt) - 1 :].argmax(-1).tolist() == list(tokens)

    def beams(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        width: int,
        stop_token_ids: Sequence[int] = (),
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        min_tokens: int = 0,
    ) -> list[list[int]]:
        """Return the outputs of a beam search, the best first, each with its stop token."""
        with torch.no_grad():
            outputs = self.reference.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                do_sample=False,
                num_beams=width,
                num_return_sequences=width,
                length_penalty=length_penalty,
                early_stopping=early_stopping,
                max_new_tokens=max_tokens,
                min_new_tokens=min_tokens,
                eos_token_id=list(stop_token_ids) or None,
                pad_token_id=0,
            )
        stops = frozenset(stop_token_ids)
        rows = outputs[:, len(prompt) :].tolist()
        return [
            row[: next((i + 1 for i, token in enumerate(row) if token in stops), None)]
            for row in rows
        ]
