"""Random inputs of one attention call, and the call on each path. Poison where nobody may read."""

from dataclasses import dataclass

import pytest
import torch

from pagoda_kernels import AttentionBatch, decode_batch, paged_attention, plan_attention
from pagoda_kernels.attention import reference
from pagoda_kernels.attention.score_rule import ScoreRule
from pagoda_kernels.attention.triton import paged_attention as triton_attention

FP32_AND_BF16 = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"]
)
"""For what hangs on lengths, windows and blocks: that fp16 is right is shown where each operator is
compared with its reference. Interpreted attention takes a quarter of a second."""


@dataclass
class Case:
    """Inputs of one call; every slot that no sequence owns holds NaN, or the largest int8."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    batch: AttentionBatch
    scale: float
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None

    def want(self, **options):
        return reference.paged_attention(
            self.q,
            self.k_cache,
            self.v_cache,
            self.batch,
            scale=self.scale,
            k_scale=self.k_scale,
            v_scale=self.v_scale,
            **options,
        )

    def rule(self, sliding_window=None, soft_cap=None, sinks=None, alibi_slopes=None):
        return ScoreRule(
            self.scale,
            sliding_window,
            soft_cap,
            sinks,
            self.k_scale,
            self.v_scale,
            alibi_slopes,
        )

    def got(
        self, path, sliding_window=None, soft_cap=None, sinks=None, alibi_slopes=None, **options
    ):
        arguments = self.q, self.k_cache, self.v_cache, self.batch
        if path == "cpu":
            return paged_attention(
                *arguments,
                scale=self.scale,
                sliding_window=sliding_window,
                soft_cap=soft_cap,
                sinks=sinks,
                alibi_slopes=alibi_slopes,
                k_scale=self.k_scale,
                v_scale=self.v_scale,
                **options,
            )
        out = torch.full_like(self.q, float("nan"))
        rule = self.rule(sliding_window, soft_cap, sinks, alibi_slopes)
        triton_attention.run(*arguments, rule, out, **options)
        return out

    def quantised(self, dtype, num_scales=1):
        """Replace both caches by one-byte ones with `num_scales` scales each."""
        device = self.q.device
        for name in ("k", "v"):
            cache = getattr(self, f"{name}_cache").float()
            scale = (0.5 + torch.rand(num_scales, device=device)) / 10
            stored = cache / scale[:, None]
            if dtype == torch.int8:
                stored = (stored * 3).round().nan_to_num(127).clamp(-127, 127)
                scale = scale / 3
            setattr(self, f"{name}_cache", stored.to(dtype))
            setattr(self, f"{name}_scale", scale)
        return self

    def sequence(self, seq):
        """The case with this sequence alone."""
        starts = self.batch.cu_seqlens_q.tolist()
        alone = plan_attention(
            seqlens_q=[self.batch.seqlens_q_host[seq]],
            context_lens=[self.batch.context_lens_host[seq]],
            block_tables=[self.batch.block_tables[seq].tolist()],
            block_size=self.batch.block_size,
            device=self.q.device,
        )
        rows = self.q[starts[seq] : starts[seq + 1]]
        return Case(rows, self.k_cache, self.v_cache, alone, self.scale, self.k_scale, self.v_scale)


def each_token_a_row(batch):
    """A batch of decodes: tokens of one sequence share its block table, and see one more each."""
    lengths = zip(batch.seqlens_q_host, batch.context_lens_host, strict=True)
    contexts = [end - new + 1 + i for new, end in lengths for i in range(new)]
    device = batch.context_lens.device
    repeats = torch.tensor(batch.seqlens_q_host, device=device)
    return decode_batch(
        context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
        block_tables=batch.block_tables.repeat_interleave(repeats, 0),
        slot_mapping=batch.slot_mapping,
        cu_seqlens_q=torch.arange(len(contexts) + 1, dtype=torch.int32, device=device),
        block_size=batch.block_size,
        max_context_len=max(contexts),
    )


def make_case(
    seqlens_q, context_lens, *, heads=(2, 1), head_dim=64, block_size=16, dtype, device
) -> Case:
    num_heads, num_kv_heads = heads
    needed = [-(-context // block_size) for context in context_lens]
    num_blocks = sum(needed) + 2
    free = torch.randperm(num_blocks).tolist()
    block_tables = [[free.pop() for _ in range(count)] for count in needed]
    caches = torch.full((2, num_blocks, block_size, num_kv_heads, head_dim), float("nan"))
    for table, context in zip(block_tables, context_lens, strict=True):
        position = torch.arange(context)
        block = torch.tensor(table)[position // block_size]
        values = torch.randn(2, context, num_kv_heads, head_dim)
        caches[:, block, position % block_size] = values
    batch = plan_attention(
        seqlens_q=seqlens_q,
        context_lens=context_lens,
        block_tables=block_tables,
        block_size=block_size,
        device=device,
    )
    q = torch.randn(sum(seqlens_q), num_heads, head_dim)
    k_cache, v_cache = caches.to(device, dtype)
    return Case(q.to(device, dtype), k_cache, v_cache, batch, head_dim**-0.5)
