"""How large a transfer measurement is wanted; both of its processes read it."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TransferScale:
    """Sizes of everything that two processes do.

    Attributes:
        shape: name of the model.
        dtype: of weights and KV.
        link_blocks: blocks of each single transfer that is timed.
        blocks_per_message: blocks that are announced together.
        prompt_length: tokens of a prompt that one process prefills for the other.
        chunk: tokens of one step of the engine that decodes, when it prefills itself.
        batch: sequences that decode while prompts arrive.
        context: tokens of each before.
        num_layer_groups: parts in which KV is sent while the forward runs.
        num_repetitions: of every timed transfer and prompt.
        seconds: for which prompts arrive.
        arrival_seconds: between two prompts.
        max_output_tokens: of a sequence that decodes meanwhile.
    """

    shape: str
    dtype: torch.dtype
    link_blocks: tuple[int, ...]
    blocks_per_message: int
    prompt_length: int
    chunk: int
    batch: int
    context: int
    num_layer_groups: int
    num_repetitions: int
    seconds: float
    arrival_seconds: float
    max_output_tokens: int

    @property
    def max_model_len(self) -> int:
        """Longest sequence of either engine."""
        return max(self.prompt_length, self.context + self.max_output_tokens) + 16

    @property
    def num_peer_blocks(self) -> int:
        """Blocks of the process that prefills: four prompts, or the largest single transfer."""
        return max(*self.link_blocks, 4 * (self.prompt_length // 16 + 1)) + 8

    @property
    def num_blocks(self) -> int:
        """Blocks of the process that decodes: its sequences, and four prompts beside them."""
        decoding = self.batch * ((self.context + self.max_output_tokens) // 16 + 2)
        return int(1.05 * (decoding + self.num_peer_blocks)) + 8


TRANSFER_SCALES = {
    "real": TransferScale(
        shape="llama-3.1-8b",
        dtype=torch.bfloat16,
        link_blocks=(32, 512),  # of 2 MiB: 64 MiB and 1 GiB
        blocks_per_message=64,
        prompt_length=8192,
        chunk=2048,
        batch=32,
        context=1024,
        num_layer_groups=8,
        num_repetitions=5,
        seconds=5.0,
        arrival_seconds=0.6,
        max_output_tokens=1500,
    ),
    "tiny": TransferScale(
        shape="tiny",
        dtype=torch.float32,
        link_blocks=(2, 6),
        blocks_per_message=4,
        prompt_length=90,
        chunk=32,
        batch=2,
        context=32,
        num_layer_groups=2,
        num_repetitions=2,
        seconds=0.3,
        arrival_seconds=0.1,
        max_output_tokens=2000,
    ),
}
