"""The engine's limits, by vLLM's names."""

from dataclasses import dataclass

LOAD_FORMATS = ("auto", "dummy")
"""Where weights come from: the model's files, or nowhere."""

SPECULATIONS = ("off", "ngram")
"""Who may propose tokens: nobody, or the sequence's own earlier ones."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine.

    Attributes:
        block_size: tokens per KV block.
        num_blocks: KV blocks in the pool.
        max_num_seqs: sequences in one step at most.
        max_num_batched_tokens: new tokens in one step at most (prefill chunks and decodes
            together).
        enough_prompt_tokens: tokens of prompts from which on a step is no faster for each if there
            are more: then no further prompt joins it, and those in front end sooner. 0: there is no
            such number below max_num_batched_tokens.
        max_model_len: prompt and output tokens of one sequence at most.
        max_num_waiting: sequences waiting for admission at most.
        enable_prefix_caching: reuse blocks by hash.
        device: ``cpu`` or ``cuda``.
        dtype: ``auto`` | ``float32`` | ``bfloat16`` | ``float16``; auto is the checkpoint's where
            the device is fast at it, else float32.
        quantization: ``none`` | ``int8`` | ``int4``: format of the projections' weights; see
            `pagoda_engine.models.quantization`.
        kv_cache_dtype: ``auto`` | ``fp8`` | ``int8``: number format of cached K and V; auto: that
            of activations.
        load_format: ``auto`` | ``dummy``: random weights from ``config.json`` alone.
        num_threads: CPU threads of one forward; 0 leaves torch's own choice, see `load_engine`.
        enforce_eager: on CUDA: capture no graphs.
        graph_batch_sizes: on CUDA: numbers of decodes to capture graphs for, ascending, each
            proposed token that is verified counted as one; None: chosen up to max_num_seqs.
        num_layer_groups: parts in which a prefill_only sequence's KV is reported while its forward
            runs (see `Engine`); 1: not before the forward has ended.
        speculation: ``off`` | ``ngram``: propose tokens that followed the same ones before, in the
            sequence or in its tenant's outputs, and verify several in one step. Outputs stay the
            same.
        num_speculative_tokens: proposed for a sequence in one step at most.
        speculation_output_bytes: for what tenants' outputs said, 544 KiB each; less than one
            needs: a sequence proposes from itself alone.
    """

    block_size: int = 16
    num_blocks: int = 1024
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    enough_prompt_tokens: int = 0
    max_model_len: int = 2048
    max_num_waiting: int = 256
    enable_prefix_caching: bool = True
    device: str = "cpu"
    dtype: str = "auto"
    quantization: str = "none"
    kv_cache_dtype: str = "auto"
    load_format: str = "auto"
    num_threads: int = 0
    enforce_eager: bool = False
    graph_batch_sizes: tuple[int, ...] | None = None
    num_layer_groups: int = 1
    speculation: str = "off"
    num_speculative_tokens: int = 7
    speculation_output_bytes: int = 32 << 20

    @property
    def max_num_rows(self) -> int:
        """Rows of logits in one step at most, those of proposed tokens included.

        On a GPU memory was measured for one of each sequence.
        """
        if self.speculation == "off" or not self.device.startswith("cpu"):
            return self.max_num_seqs
        return max(self.max_num_seqs, 1 + self.num_speculative_tokens)
