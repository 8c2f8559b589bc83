"""What whoever starts an engine may choose; what is left open, the device decides.

Values only. Knows nothing of where they come from.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of one start. Errors name them as they are called here.

    Attributes:
        block_size: see `EngineConfig`.
        max_num_waiting: sequences that wait for their first admission at most.
        gpu_memory_utilization: share of the whole GPU, in (0, 1].
        device: ``auto`` | ``cpu`` | ``cuda``; auto is cuda if there is one.
        dtype: see `EngineConfig`.
        quantization: see `EngineConfig`.
        kv_cache_dtype: see `EngineConfig`.
        load_format: see `EngineConfig`.
        num_threads: see `EngineConfig`.
        processor_table: on CPU: the file where the workers of this machine share its processors;
            empty: nobody shares.
        num_blocks: KV blocks in the pool; 0: from `kv_cache_bytes`.
        kv_cache_bytes: of the pool; 0: on CPU room for one longest sequence within an eighth of
            the memory, 256 MiB at least; else what the share leaves.
        max_model_len: tokens of one sequence, for which there must be room; 0: the model's limit,
            or what the pool holds if that is less.
        max_num_seqs: sequences in one step at most; 0: by the device.
        max_num_batched_tokens: new tokens in one step at most; 0: by the device.
        enforce_eager: see `EngineConfig`.
        graph_batch_sizes: see `EngineConfig`; empty: chosen up to `max_num_seqs`.
        num_layer_groups: see `EngineConfig`; 0: by the device.
        speculation: see `EngineConfig`; ``auto`` is ``ngram`` where a token's result does not
            depend on what is computed beside it, so that no output changes: on a CPU, for dense
            models.
        num_speculative_tokens: see `EngineConfig`.
        speculation_output_bytes: see `EngineConfig`.
        max_adapters: LoRA adapters loaded at the same time at most, for which memory is taken at
            the start; 0: none can be loaded.
        max_adapter_rank: of an adapter at most.
    """

    block_size: int
    max_num_waiting: int
    gpu_memory_utilization: float
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    kv_cache_dtype: str = "auto"
    load_format: str = "auto"
    num_threads: int = 0
    processor_table: str = ""
    num_blocks: int = 0
    kv_cache_bytes: int = 0
    max_model_len: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    enforce_eager: bool = False
    graph_batch_sizes: tuple[int, ...] = ()
    num_layer_groups: int = 0
    speculation: str = "auto"
    num_speculative_tokens: int = 7
    speculation_output_bytes: int = 32 << 20
    max_adapters: int = 0
    max_adapter_rank: int = 16
