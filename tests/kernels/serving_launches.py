"""Launch what a server launches, on a CUDA device that computes nothing, and say what is compiled.

Run as a script without TRITON_INTERPRET, with a seed; prints a JSON object for each family of
operators: how many compiled kernels its warm-up asks for, which others the serving after it does,
and the kernels that a captured decode step launches.
"""

import json
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from support.fake_cuda import DEVICE, LaunchLog, captured, fake_cuda

import pagoda_kernels as kernels
from pagoda_kernels import AttentionBatch, Fp8Weight, Int4Weight, Int8Weight, SamplingRows
from pagoda_kernels.host_copy import views

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
HIDDEN, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, VOCAB_SIZE, BLOCK_SIZE = 1024, 16, 4, 128, 50304, 16
MAX_SEQS, MAX_CONTEXT = 256, 131072
NUM_SERVED = 24


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=DEVICE)


def on_device(arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
    """As `host_copy.to_device` leaves them: views of one allocation."""
    size = sum(-(-array.nbytes // 16) * 16 for array in arrays)
    return views(empty(size, dtype=torch.uint8), arrays)


def step_batch(new: Sequence[int], context: Sequence[int]) -> AttentionBatch:
    """As `plan_attention` builds it for CUDA."""
    num_blocks = -(-max(context) // BLOCK_SIZE)
    starts, lengths, tables, slots = on_device(
        [
            np.zeros(len(new) + 1, np.int32),
            np.zeros(len(new), np.int32),
            np.zeros((len(new), num_blocks), np.int32),
            np.zeros(sum(new), np.int64),
        ]
    )
    return AttentionBatch(
        starts, lengths, tables, slots, tuple(new), tuple(context), BLOCK_SIZE, None
    )


def graph_batch(size: int) -> AttentionBatch:
    """Of persistent buffers for MAX_SEQS decodes, which need not begin on 16 bytes."""
    lengths = empty(5, MAX_SEQS + 3, dtype=torch.int32)
    return kernels.decode_batch(
        context_lens=lengths[3, :size],
        block_tables=empty(MAX_SEQS, MAX_CONTEXT // BLOCK_SIZE, dtype=torch.int32)[:size],
        slot_mapping=empty(MAX_SEQS + 1, dtype=torch.int64)[1 : size + 1],
        cu_seqlens_q=empty(MAX_SEQS + 1, dtype=torch.int32)[: size + 1],
        block_size=BLOCK_SIZE,
        max_context_len=MAX_CONTEXT,
    )


def sampling_rows(num_rows: int, *, truncates_more: bool = False) -> SamplingRows:
    return SamplingRows(empty(9, num_rows, dtype=torch.int64), truncates_more)


def attention(hidden: torch.Tensor, batch: AttentionBatch, window: int | None) -> torch.Tensor:
    """Norm, projection, KV write, attention."""
    norm, head_norm = empty(HIDDEN), empty(HEAD_DIM)
    qkv_dim = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
    qkv = F.linear(kernels.rms_norm(hidden, norm, 1e-5), empty(qkv_dim, HIDDEN))
    pool = empty(2, 100_000, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    q = kernels.write_qkv(
        qkv,
        on_device([np.zeros(len(hidden) + 1, np.int64)])[0][1:],
        empty(MAX_CONTEXT, HEAD_DIM, dtype=torch.float32),
        pool[0],
        pool[1],
        batch.slot_mapping,
        num_heads=NUM_HEADS,
        q_norm=head_norm,
        k_norm=head_norm,
    )
    scale = HEAD_DIM**-0.5
    attended = kernels.paged_attention(
        q, pool[0], pool[1], batch, scale=scale, sliding_window=window
    )
    return F.linear(attended.view(len(hidden), -1), empty(HIDDEN, NUM_HEADS * HEAD_DIM))


def sampled(hidden: torch.Tensor) -> None:
    """Logits of the rows, penalties, tokens, logprobs."""
    logits = F.linear(hidden, empty(VOCAB_SIZE, HIDDEN))
    num_rows = len(hidden)
    factors = empty(3, num_rows, dtype=torch.float32)
    counts = empty(num_rows, VOCAB_SIZE, dtype=torch.float32)
    penalised = kernels.penalise_logits(logits, counts, counts > 0, *factors.unbind())
    token_ids, _ = kernels.sample_tokens(penalised, sampling_rows(num_rows))
    kernels.sample_tokens(logits, sampling_rows(num_rows))
    kernels.sample_tokens(logits, sampling_rows(num_rows, truncates_more=True))
    logprobs = torch.log_softmax(logits.float(), -1)
    logprobs.gather(1, token_ids[:, None])
    logprobs.topk(5, -1)


def dense(batch: AttentionBatch) -> None:
    """A Llama or Qwen3 of two layers, one of them with a window."""
    num_tokens = sum(batch.seqlens_q_host)
    residual = F.embedding(empty(num_tokens, dtype=torch.int64), empty(VOCAB_SIZE, HIDDEN))
    hidden = residual
    for window in (None, 4096):
        hidden = attention(hidden, batch, window)
        hidden, residual = kernels.add_rms_norm(hidden, residual, empty(HIDDEN), 1e-5)
        hidden = F.linear(kernels.silu_mul(F.linear(hidden, empty(4096, HIDDEN))),
                          empty(HIDDEN, 2048))  # fmt: skip
    num_seqs = len(batch.seqlens_q_host)
    if num_seqs < num_tokens:
        hidden = hidden.index_select(0, empty(num_seqs, dtype=torch.int64))
    sampled(hidden)


def quantised(batch: AttentionBatch) -> None:
    """Every quantised matmul, and what feeds the fp8 ones."""
    x = empty(sum(batch.seqlens_q_host), HIDDEN)
    num_n = 4096
    for scales in ((1,), (num_n,), (num_n // 128, HIDDEN // 128)):
        weight = Fp8Weight(empty(num_n, HIDDEN, dtype=FP8), empty(*scales, dtype=torch.float32))
        kernels.quant_matmul(x, weight)
    static = empty(1, dtype=torch.float32)
    kernels.quant_matmul(x, weight := Fp8Weight(weight.values, static), x_scale=static)
    codes, row_scales = kernels.rms_norm_quantised(x, empty(HIDDEN), 1e-5)
    gate_up = kernels.fp8_matmul(codes, row_scales, weight, dtype=BF16)
    kernels.silu_mul_quantised(gate_up)
    kernels.quant_matmul(x, Int8Weight(empty(num_n, HIDDEN, dtype=torch.int8), empty(num_n)))
    groups = HIDDEN // 128
    scales, zeros = empty(groups, num_n), empty(groups, num_n)
    packed = empty(groups, num_n, 32, dtype=torch.int16)
    kernels.quant_matmul(x, Int4Weight(packed, scales, zeros))


def mixture(batch: AttentionBatch) -> None:
    """128 experts, 8 of them for a token, in bf16 and in fp8."""
    num_tokens, num_experts, width = sum(batch.seqlens_q_host), 128, 768
    x, logits = empty(num_tokens, HIDDEN), empty(num_tokens, num_experts)
    weights, experts = kernels.route_topk(logits, 8, renormalise=True)
    shapes = (num_experts, 2 * width, HIDDEN), (num_experts, HIDDEN, width)
    kernels.fused_moe(x, *(empty(*shape) for shape in shapes), weights, experts)
    scales = [empty(e, n // 128, k // 128, dtype=torch.float32) for e, n, k in shapes]
    values = [empty(*shape, dtype=FP8) for shape in shapes]
    kernels.fused_moe(x, *values, weights, experts, gate_up_scale=scales[0], down_scale=scales[1])


def adapters(batch: AttentionBatch) -> None:
    """Eight adapters of rank up to 64, mixed."""
    num_tokens = sum(batch.seqlens_q_host)
    rows = on_device([np.zeros(3, np.int64), np.zeros(num_tokens + 1, np.int32)])[1][1:]
    kernels.add_lora(
        empty(num_tokens, HIDDEN),
        empty(num_tokens, HIDDEN),
        empty(8, 64, HIDDEN),
        empty(8, HIDDEN, 64),
        rows,
        empty(8, dtype=torch.int32),
        empty(8, dtype=torch.float32),
    )


def latent(batch: AttentionBatch) -> None:
    """DeepSeek's attention, absorbed; expanded for prompts."""
    num_tokens = sum(batch.seqlens_q_host)
    down, q = empty(num_tokens, 1536 + 576), empty(num_tokens, 16, 192)
    positions = on_device([np.zeros(num_tokens + 1, np.int64)])[0][1:]
    table = empty(MAX_CONTEXT, 64, dtype=torch.float32)
    kernels.rms_norm(down[:, :1536], empty(1536), 1e-6)
    compressed = kernels.rms_norm(down[:, 1536:2048], empty(512), 1e-6)
    turned_q, turned_k = kernels.apply_rope(
        q[..., 128:], down[:, None, 2048:], positions, table, interleaved=True
    )
    cache = empty(1000, BLOCK_SIZE, 576)
    kernels.write_latent(torch.cat((compressed, turned_k[:, 0]), 1), cache, batch.slot_mapping)
    absorbed = torch.bmm(q[..., :128].transpose(0, 1), empty(16, 128, 512)).transpose(0, 1)
    absorbed = torch.cat((absorbed, turned_q), 2)
    kernels.mla_decode(absorbed, cache, batch, scale=0.1, kv_lora_rank=512)
    start = 0
    for new, keys in zip(batch.seqlens_q_host, batch.context_lens_host, strict=True):
        rows, start = slice(start, start + new), start + new
        if new < 128:
            continue
        starts = on_device([np.zeros(2, np.int32), np.zeros(2, np.int32)])
        lengths = kernels.VarlenBatch(starts[0], starts[1], (new,), (keys,))
        for heads in (16, 4):  # as many at once as there is room for
            kv = empty(keys, heads, 256)
            k = torch.cat((kv[..., :128], kv[..., 128:192]), 2)
            kernels.mla_prefill(q[rows, :heads], k, kv[..., 128:], lengths, scale=0.1)


def transfers(batch: AttentionBatch) -> None:
    """As many blocks as the batch has sequences, out, in again and from a peer, digested."""
    pool, peers = (empty(2, 8, n, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM) for n in (64, 100))
    num_blocks = len(batch.seqlens_q_host)
    ids = empty(num_blocks + 1, dtype=torch.int64)[1:]
    blocks, digests = kernels.gather_blocks(pool, ids, with_digest=True)
    kernels.gather_blocks(pool, ids)
    kernels.scatter_blocks(pool, ids, blocks)
    kernels.scatter_blocks(pool, ids, blocks, expected=digests)
    kernels.digest_pool(pool, ids)
    kernels.copy_blocks(peers, ids, pool, ids)


def others(batch: AttentionBatch) -> None:
    """What other decoders are made of: separate K and V, rotation, GELU, norms to fp8, ALiBi."""
    num_tokens = sum(batch.seqlens_q_host)
    x, weight = empty(num_tokens, HIDDEN), empty(HIDDEN)
    q, k = empty(num_tokens, NUM_HEADS, HEAD_DIM), empty(num_tokens, NUM_KV_HEADS, HEAD_DIM)
    positions = on_device([np.zeros(num_tokens + 1, np.int64)])[0][1:]
    table = empty(MAX_CONTEXT, HEAD_DIM, dtype=torch.float32)
    kernels.apply_rope(kernels.rms_norm(q, empty(HEAD_DIM), 1e-5), k, positions, table)
    cache = empty(1000, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    kernels.write_kv(k, k, cache, cache, batch.slot_mapping)
    slopes = empty(NUM_HEADS, dtype=torch.float32)
    kernels.paged_attention(q, cache, cache, batch, scale=0.1, alibi_slopes=slopes)
    kernels.paged_attention(q, cache, cache, batch, scale=0.1, soft_cap=50.0)
    kernels.gelu_mul(x)
    kernels.rms_norm(x, weight, 1e-5, unit_offset=True)
    kernels.add_rms_norm(x, x, weight, 1e-5, unit_offset=True)
    kernels.add_rms_norm_quantised(x, x, weight, 1e-5)


@dataclass(frozen=True)
class Family:
    """Operators that run together on a batch.

    `warm_up`: numbers of tokens that ask for every tile size there is. `in_graph`: a decode step
    runs them.
    """

    run: Callable[[AttentionBatch], None]
    warm_up: tuple[int, ...] = (2,)
    in_graph: bool = True


FAMILIES = {
    "dense": Family(dense),
    "quantised": Family(quantised, (2, 32, 64, 128)),
    "mixture": Family(mixture, (2, 256, 512)),
    "adapters": Family(adapters, (2, 128, 256)),
    "latent": Family(latent, (2, 256)),
    "others": Family(others),
    "transfers": Family(transfers, in_graph=False),
}


def random_batch(rng: random.Random) -> AttentionBatch:
    """Decodes, prefills, or both."""
    decodes = [1] * rng.choice([0, 1, rng.randrange(2, MAX_SEQS)])
    chunks = [rng.randrange(1, 700) for _ in range(rng.choice([0, 1, 2]))]
    new = [*decodes, *chunks] or [1]
    return step_batch(new, [n + rng.choice([0, 1, rng.randrange(MAX_CONTEXT)]) for n in new])


def report(name: str, family: Family, log: LaunchLog, rng: random.Random) -> None:
    """Warm up, capture, serve at random."""
    log.clear()
    for size in family.warm_up:
        family.run(step_batch([size], [size]))
        family.run(step_batch([1] * size, [MAX_CONTEXT] * size))
    warm = set(log.keys)
    log.clear()
    if family.in_graph:
        with captured():
            family.run(graph_batch(1))
    launched = [kernel for kernel, _ in log.keys]
    for _ in range(NUM_SERVED):
        family.run(random_batch(rng))
        if family.in_graph:
            with captured():
                family.run(graph_batch(rng.randrange(1, MAX_SEQS)))
    new = sorted(set(log.keys) - warm)
    print(json.dumps({"family": name, "warm": len(warm), "new": new, "graph": launched}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with fake_cuda() as log:
        for name, family in FAMILIES.items():
            report(name, family, log, random.Random(int(sys.argv[1])))
