"""How many KV blocks a device has room for, and the arithmetic behind it in words.

Numbers in, numbers and text out. Knows no torch, no device and no options.
"""

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What an engine may use of a device and what of that it needs for other things than KV.

    All but `utilization` are bytes.

    Attributes:
        device: its name in the explanation.
        total_bytes: memory of the whole device.
        free_bytes: what is free beside `weight_bytes` and `other_bytes`, which are taken; below 0
            if they are not taken yet and there is no room for them.
        utilization: its share of the whole device, in (0, 1], whatever its neighbours do.
        weight_bytes: weights of the model.
        other_bytes: memory of this process that torch did not allocate: context, libraries.
        activation_bytes: peak of the largest step above all the rest, with what libraries keep for
            each of the two threads that use its stream.
        graph_bytes: allowance for captured graphs.
        copy_bytes: buffers of KV on its way to or from other memory.
        largest_step: that step in words.
    """

    device: str
    total_bytes: int
    free_bytes: int
    utilization: float
    weight_bytes: int
    other_bytes: int = 0
    activation_bytes: int = 0
    graph_bytes: int = 0
    copy_bytes: int = 0
    largest_step: str = ""

    @property
    def share_bytes(self) -> int:
        """This process's part of the device."""
        return int(self.total_bytes * self.utilization)

    @property
    def free_pool_bytes(self) -> int:
        """What the needs still to come leave of the free memory; never below 0."""
        return max(0, self.free_bytes - self._later_bytes)

    @property
    def pool_bytes(self) -> int:
        """What is left for KV: neither the share nor the free memory is exceeded."""
        return max(0, min(self.share_bytes - self._used_bytes, self.free_pool_bytes))

    @property
    def neighbour_bytes(self) -> int:
        """What other processes hold on the device."""
        own = self.weight_bytes + self.other_bytes
        return max(0, self.total_bytes - self.free_bytes - own)

    def utilization_for(self, pool_bytes: int) -> float:
        """The share that a pool of this size takes; above 1 if the device is too small for it."""
        return (self._used_bytes + pool_bytes) / self.total_bytes

    def explain(self) -> str:
        """Return the arithmetic, a term a line."""
        whole = format_bytes(self.total_bytes)
        terms = [
            ("share", self.share_bytes, f"{self.utilization:g} of {whole}"),
            ("weights", -self.weight_bytes, ""),
            ("context, libraries", -self.other_bytes, ""),
            ("largest step", -self.activation_bytes, self.largest_step),
            ("graphs", -self.graph_bytes, "allowance"),
            ("KV copies", -self.copy_bytes, ""),
            ("left of the share", self.share_bytes - self._used_bytes, ""),
        ]
        lines = [f"{self.device}:"]
        for name, num_bytes, note in terms:
            if num_bytes or name in ("share", "left of the share"):
                lines.append(f"  {name:20}{num_bytes / GIB:>9.2f} GiB  {note}".rstrip())
        lines.append(
            f"  {'free for KV':20}{self.free_pool_bytes / GIB:>9.2f} GiB  "
            f"other processes hold {format_bytes(self.neighbour_bytes)}"
        )
        return "\n".join(lines)

    @property
    def _later_bytes(self) -> int:
        return self.activation_bytes + self.graph_bytes + self.copy_bytes

    @property
    def _used_bytes(self) -> int:
        return self.weight_bytes + self.other_bytes + self._later_bytes


@dataclass(frozen=True, slots=True)
class KvPool:
    """A number of KV blocks and what they hold.

    Attributes:
        num_blocks: at least 0.
        block_bytes: of one block, all layers.
        block_size: tokens of one block.
    """

    num_blocks: int
    block_bytes: int
    block_size: int

    @property
    def num_tokens(self) -> int:
        """Tokens that fit."""
        return self.num_blocks * self.block_size

    def explain(self, max_model_len: int) -> str:
        """Return what the pool holds, in one line."""
        size = format_bytes(self.num_blocks * self.block_bytes)
        token_kib = self.block_bytes / self.block_size / 1024
        return (
            f"KV pool {size}: {self.num_blocks} blocks of {self.block_size} tokens, "
            f"{token_kib:g} KiB per token, {self.num_tokens} tokens, "
            f"{self.num_tokens / max_model_len:.1f} sequences of {max_model_len} tokens"
        )


def format_bytes(num_bytes: int) -> str:
    """Return the size in GiB, or in MiB below one."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.2f} MiB"
