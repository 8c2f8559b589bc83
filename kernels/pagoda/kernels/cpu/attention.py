"""Paged attention on CPU: gather K and V into reused scratch memory, then torch SDPA.

Decodes are gathered in groups of one padded length and attend with the query heads of a KV head as
rows. Prefills attend sequence by sequence, a few rows at a time, skipping the keys after them.
Masks are views of one small matrix, never ``[T, N]``. A compiled kernel would replace `run` alone.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from pagoda.kernels.attention_batch import AttentionBatch
from pagoda.kernels.cpu.plan import ROWS_PER_SPAN, CpuPlan, DecodeGroup, PrefillSpan
from pagoda.kernels.cpu.slots import rows_of_slots, slot_rows
from pagoda.kernels.score_rule import ScoreRule


def run(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    rule: ScoreRule,
    out: torch.Tensor,
) -> None:
    """Fill `out` ``[T, H, D]``; arguments as `paged_attention`, already checked.

    Raises:
        ValueError: `batch` was planned for another device, or a cache is not dense per token.
    """
    plan = batch.cpu_plan
    if not isinstance(plan, CpuPlan):
        raise ValueError(f"batch: expected one planned for CPU, got cpu_plan {type(plan).__name__}")
    layer = _Layer(q, k_cache, v_cache, plan, rule, out)
    token_bytes = k_cache.shape[2] * k_cache.shape[3] * k_cache.element_size()
    for group in plan.decode_groups(token_bytes, rule.window):
        layer.decode(group)
    for span in plan.prefill_spans(rule.window):
        layer.prefill(span)


@dataclass(frozen=True, slots=True)
class _Layer:
    """Arguments of one `run`."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    plan: CpuPlan
    rule: ScoreRule
    out: torch.Tensor

    def decode(self, group: DecodeGroup) -> None:
        """Attend one query token per sequence; the G query heads of a KV head are the rows."""
        num_heads, head_dim = self.q.shape[1:]
        num_kv_heads = self.k_cache.shape[2]
        num_seqs = group.rows.shape[0]
        q = self.q.index_select(0, group.rows).view(num_seqs, num_kv_heads, -1, head_dim)
        num_rows = q.shape[2]
        if num_rows == 1:
            # One-row products take a slow path: bf16 SDPA is 3 times faster with two rows.
            q = q.expand(-1, -1, 2, -1)
        k = self._gather("k", self.k_cache, group.slots, num_seqs)
        v = self._gather("v", self.v_cache, group.slots, num_seqs)
        bias = self.plan.padding_bias(group, q.dtype)
        attended = self._attend(q, k, v, bias)[:, :, :num_rows]
        self.out.index_copy_(0, group.rows, attended.reshape(num_seqs, num_heads, head_dim))

    def prefill(self, span: PrefillSpan) -> None:
        """Attend the new tokens of one sequence in equal parts of at most ROWS_PER_SPAN rows."""
        k = self._gather("k", self.k_cache, span.slots, 1)
        v = self._gather("v", self.v_cache, span.slots, 1)
        num_rows = span.end - span.start
        num_parts = -(-num_rows // ROWS_PER_SPAN)
        for part in range(num_parts):
            begin, end = num_rows * part // num_parts, num_rows * (part + 1) // num_parts
            position = span.num_computed + begin - span.first
            stop = span.num_computed + end - span.first
            first = 0 if self.rule.window is None else max(0, position + 1 - self.rule.window)
            bias = self.plan.causal_bias(
                end - begin, position - first, self.rule.window, self.q.dtype
            )
            rows = slice(span.start + begin, span.start + end)
            q = self.q[rows].transpose(0, 1)[None]
            attended = self._attend(q, k[:, :, first:stop], v[:, :, first:stop], bias)
            self.out[rows] = attended[0].transpose(0, 1)

    def _gather(
        self, name: str, cache: torch.Tensor, slots: torch.Tensor, num_seqs: int
    ) -> torch.Tensor:
        """``[S, HK, N, D]`` view of scratch memory holding the tokens of `slots`."""
        rows, rows_between = slot_rows(cache)
        block_size, num_kv_heads, head_dim = cache.shape[1:]
        scratch = self.plan.scratch(name, slots.shape[0], rows.shape[1], cache.dtype)
        index = rows_of_slots(slots, block_size, rows_between)
        torch.index_select(rows, 0, index, out=scratch)
        return scratch.view(num_seqs, -1, num_kv_heads, head_dim).transpose(1, 2)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        if self.rule.soft_cap is None:
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, scale=self.rule.scale, enable_gqa=q.shape[1] != k.shape[1]
            )
        return _attend_capped(q, k, v, bias, self.rule.scale, self.rule.soft_cap)


def _attend_capped(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    soft_cap: float,
) -> torch.Tensor:
    """SDPA with scores bounded to ``soft_cap * tanh(score / soft_cap)``, in fp32."""
    group_size = q.shape[1] // k.shape[1]
    rows = q.reshape(q.shape[0], k.shape[1], group_size, -1, q.shape[-1]).float()
    scores = torch.matmul(rows, k.float()[:, :, None].transpose(-1, -2)).mul_(scale / soft_cap)
    scores = scores.tanh_().mul_(soft_cap)
    if bias is not None:
        scores += bias if bias.dim() == 2 else bias[:, :, None]
    attended = torch.matmul(torch.softmax(scores, -1), v.float()[:, :, None])
    return attended.reshape(q.shape).to(q.dtype)
