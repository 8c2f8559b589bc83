"""An engine for steps whose tokens nobody wants: to measure them, or to get ready for real ones.

Knows the engine. Knows nothing of devices' limits or of options.
"""

from dataclasses import replace

import torch

from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.cache.windowed_parts import place_table
from pagoda_engine.config import EngineConfig
from pagoda_engine.engine import Engine
from pagoda_engine.models.model_folder import LoadedModel
from pagoda_engine.sampling_params import SamplingParams
from pagoda_engine.sequence_request import SequenceRequest

NUM_OUTPUT_TOKENS = 3
"""Of every scratch sequence: the prefill gives one, two come from decodes."""


MAX_SPARE_SEQUENCES = 16
"""Scratch sequences at the same time beyond those that fit in a step."""


class OneLayerCache(KvCache):
    """KV blocks whose layers all lie in the memory of one.

    A step takes the time and the memory it takes with a whole cache; what it computes is worthless.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, device: torch.device) -> None:
        super().__init__(layout.in_one_place(), num_blocks * layout.num_parts, device)
        self.layout, self.num_blocks = layout, num_blocks
        if layout.groups is not None:
            self.part_places = place_table(num_blocks * layout.num_parts, layout.num_parts - 1)

    def layer(self, layer_index: int) -> tuple[torch.Tensor, ...]:
        """Return views of the same memory for every layer."""
        return self._layers[0 if self.layout.mixed is None else layer_index]

    @property
    def all_layers(self) -> torch.Tensor:
        """The same blocks as every layer's."""
        if self.layout.mixed is not None:
            return self.tensor
        return self.tensor.expand(-1, self.layout.block_shape[1], -1, -1, -1, -1)


class ScratchEngine:
    """Runs dummy sequences, without graphs and without a trace in the real engine's blocks."""

    def __init__(
        self, model: LoadedModel, config: EngineConfig, *, num_tokens: int, num_seqs: int
    ) -> None:
        """Allocate KV of one layer.

        Args:
            model: of the real engine.
            config: of the real engine.
            num_tokens: KV tokens at the same time, over all sequences.
            num_seqs: so many; those that are more than may run wait.
        """
        # Each sequence has a block that is not full, and running ones spare one each.
        num_running = min(num_seqs, config.max_num_seqs)
        num_blocks = num_tokens // config.block_size + 2 * num_running
        num_blocks += num_blocks // 50 + 1  # admission leaves a hundredth free
        config = replace(
            config,
            num_blocks=num_blocks,
            max_num_waiting=config.max_num_seqs + MAX_SPARE_SEQUENCES,
            enable_prefix_caching=False,
            enforce_eager=True,
        )
        self.engine = Engine(
            model,
            config,
            hash_block=_no_hash,
            kv_cache=OneLayerCache(model.kv_layout(config.block_size), num_blocks, model.device),
        )
        self._num_sequences = 0

    def add(self, num_prompt_tokens: int, sampling: SamplingParams) -> None:
        """Queue a sequence of NUM_OUTPUT_TOKENS."""
        self._num_sequences += 1
        request = SequenceRequest(
            sequence_id=f"scratch-{self._num_sequences}",
            prompt_token_ids=(0,) * num_prompt_tokens,
            block_hashes=(),
            cache_root=bytes(16),
            sampling=replace(sampling, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True),
        )
        self.engine.add(request)

    def step(self) -> None:
        """Launch one step."""
        self.engine.step()

    def finish(self) -> None:
        """Step until all sequences have ended."""
        while self.engine.has_work():
            self.engine.step()


def _no_hash(parent: bytes, token_ids: object) -> bytes:
    raise AssertionError("scratch blocks are never hashed")
