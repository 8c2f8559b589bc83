"""What a GGUF file's head says of its architecture.

Knows keys and shapes of tensors. Knows nothing of what an architecture makes of them.
"""

from dataclasses import dataclass
from typing import Any

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_formats.gguf_file import GgufFile


@dataclass(frozen=True, slots=True)
class Head:
    """A file's head, and its fields under the names of ``config.json`` as far as they map singly.

    Attributes:
        file: the head.
        name: of the architecture, which its keys begin with.
        config: see above.
    """

    file: GgufFile
    name: str
    config: ConfigReader

    def get(self, key: str) -> Any:
        """Return the value of one of the architecture's keys, or None."""
        return self.file.metadata.get(f"{self.name}.{key}")

    def has_tensor(self, name: str) -> bool:
        """Tell whether the file has a tensor."""
        return name in self.file.tensors

    def dim(self, tensor: str, axis: int) -> int | None:
        """Return a size of a tensor; None without it."""
        found = self.file.tensors.get(tensor)
        return found.shape[axis] if found is not None and axis < len(found.shape) else None

    @property
    def head_dim(self) -> int:
        """Width of a head of K, as far as the file says it.

        Raises:
            CheckpointError: sizes are missing or out of range.
        """
        config, turning = self.config, self.get("rope.dimension_count")
        if self.name == "llama" and not config.has("head_dim") and isinstance(turning, int):
            return turning  # older converters say no other
        per_head = config.integer("hidden_size") // config.integer("num_attention_heads")
        return config.integer("head_dim", per_head)
