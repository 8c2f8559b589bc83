"""Paged attention on CPU: gather K and V into reused scratch memory, then torch SDPA.

Decodes are gathered in groups of one padded length and attend with the query heads of a KV head as
rows. Prefills attend sequence by sequence, a few rows at a time, skipping the keys after them.
Masks are views of one small matrix, never ``[T, N]``. Quantised KV is widened as it is gathered.
Soft caps, sinks and ALiBi, which SDPA has not, take plain matmuls in fp32. A compiled kernel would
replace `run` alone.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from pagoda_kernels.attention.batch import AttentionBatch
from pagoda_kernels.attention.cpu_plan import (
    ROWS_PER_SPAN,
    CpuPlan,
    DecodeGroup,
    PrefillSpan,
    RefilledPlan,
)
from pagoda_kernels.attention.score_rule import ScoreRule
from pagoda_kernels.kv.quantisation import bytes_of, dequantise
from pagoda_kernels.kv.slots import rows_of_slots, slot_rows


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
    planned = batch.cpu_plan
    if not isinstance(planned, CpuPlan | RefilledPlan):
        got = type(planned).__name__
        raise ValueError(f"batch: expected one planned for CPU, got cpu_plan {got}")
    plan = planned.current()
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
        sinks = _by_rows(self.rule.sinks, num_kv_heads, -1)
        slopes = _by_rows(self.rule.alibi_slopes, num_kv_heads, -1)
        if num_rows == 1:
            # One-row products take a slow path: bf16 SDPA is 3 times faster with two rows.
            q = q.expand(-1, -1, 2, -1)
        k = self._gather("k", self.k_cache, group.slots, num_seqs, self.rule.k_scale)
        v = self._gather("v", self.v_cache, group.slots, num_seqs, self.rule.v_scale)
        bias = self.plan.padding_bias(group, q.dtype)
        attended = self._attend(q, k, v, bias, sinks, slopes)[:, :, :num_rows]
        self.out.index_copy_(0, group.rows, attended.reshape(num_seqs, num_heads, head_dim))

    def prefill(self, span: PrefillSpan) -> None:
        """Attend the new tokens of one sequence in equal parts of at most ROWS_PER_SPAN rows."""
        k = self._gather("k", self.k_cache, span.slots, 1, self.rule.k_scale)
        v = self._gather("v", self.v_cache, span.slots, 1, self.rule.v_scale)
        sinks = _by_rows(self.rule.sinks, self.q.shape[1], 1)
        slopes = _by_rows(self.rule.alibi_slopes, self.q.shape[1], 1)
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
            seen = slice(first, stop)
            attended = self._attend(q, k[:, :, seen], v[:, :, seen], bias, sinks, slopes)
            self.out[rows] = attended[0].transpose(0, 1)

    def _gather(
        self,
        name: str,
        cache: torch.Tensor,
        slots: torch.Tensor,
        num_seqs: int,
        scale: torch.Tensor | None,
    ) -> torch.Tensor:
        """``[S, HK, N, D]`` of the tokens of `slots`; scratch memory if the cache is as q."""
        cached_dtype = cache.dtype
        cache = bytes_of(cache)
        rows, rows_between = slot_rows(cache)
        block_size, num_kv_heads, head_dim = cache.shape[1:]
        scratch = self.plan.scratch(name, slots.shape[0], rows.shape[1], cache.dtype)
        index = rows_of_slots(slots, block_size, rows_between)
        torch.index_select(rows, 0, index, out=scratch)
        gathered = scratch.view(num_seqs, -1, num_kv_heads, head_dim)
        if scale is not None:
            gathered = dequantise(gathered.view(cached_dtype), scale, self.q.dtype)
        return gathered.transpose(1, 2)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: torch.Tensor | None,
        sinks: torch.Tensor | None,
        slopes: torch.Tensor | None,
    ) -> torch.Tensor:
        if self.rule.soft_cap is None and sinks is None and slopes is None:
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, scale=self.rule.scale, enable_gqa=q.shape[1] != k.shape[1]
            )
        return _attend_plainly(q, k, v, bias, self.rule, sinks, slopes)


def _by_rows(x: torch.Tensor | None, num_heads: int, num_rows: int) -> torch.Tensor | None:
    """``[H]`` in the order of a query's heads and rows, ``[num_heads, num_rows, 1]`` fp32."""
    return None if x is None else x.float().view(num_heads, num_rows, 1)


def _attend_plainly(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    rule: ScoreRule,
    sinks: torch.Tensor | None,
    slopes: torch.Tensor | None,
) -> torch.Tensor:
    """SDPA in fp32 with scores bounded to ``soft_cap * tanh(score / soft_cap)``, sinks and ALiBi.

    `sinks` ``[H, rows or 1, 1]``: one more column of the softmax, whose value is nothing. `slopes`
    as `sinks`: a row's weights are the same from whichever key distances are counted, so from the
    first.
    """
    group_size = q.shape[1] // k.shape[1]
    rows = q.reshape(q.shape[0], k.shape[1], group_size, -1, q.shape[-1]).float()
    scores = torch.matmul(rows, k.float()[:, :, None].transpose(-1, -2)).mul_(rule.scale)
    if rule.soft_cap is not None:
        scores = scores.div_(rule.soft_cap).tanh_().mul_(rule.soft_cap)
    if slopes is not None:
        by_group = slopes.view(k.shape[1], group_size, -1, 1)
        scores += by_group * torch.arange(k.shape[2], dtype=torch.float32)
    if bias is not None:
        scores += bias if bias.dim() == 2 else bias[:, :, None]
    if sinks is not None:
        column = sinks.view(k.shape[1], group_size, -1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], -1)
    weights = torch.softmax(scores, -1)[..., : k.shape[2]]
    attended = torch.matmul(weights, v.float()[:, :, None])
    return attended.reshape(q.shape).to(q.dtype)
