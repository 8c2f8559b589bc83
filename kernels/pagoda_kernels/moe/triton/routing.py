"""Top-k routing of tokens to experts. Reference: `reference.route_topk`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.triton.launch import next_power_of_2, on_device_of


@triton.jit
def route_topk_kernel(
    logits_ptr,
    bias_ptr,
    weight_ptr,
    expert_ptr,
    scale,
    stride_lt,
    num_experts,
    group_size,
    IS_SIGMOID: tl.constexpr,
    RENORMALISE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """``weight = score of the TOP_K largest score + bias``; one program per token.

    Tile [BLOCK_E]. The best are taken one after the other, lower index first; groups are judged on
    a tile [BLOCK_G, BLOCK_E] masked to their members. DeepSeek-V3, https://arxiv.org/abs/2412.19437.
    """
    token = tl.program_id(0).to(tl.int64)
    offs_e = tl.arange(0, BLOCK_E)
    mask_e = offs_e < num_experts
    # [BLOCK_E]
    logits = tl.load(logits_ptr + token * stride_lt + offs_e, mask=mask_e, other=0.0)
    logits = tl.where(mask_e, logits.to(tl.float32), float("-inf"))
    if IS_SIGMOID:
        scores = tl.sigmoid(logits)
    else:
        exponents = tl.exp(logits - tl.max(logits, axis=0))
        scores = exponents / tl.sum(exponents, axis=0)
    choice = scores
    if HAS_BIAS:
        choice += tl.load(bias_ptr + offs_e, mask=mask_e, other=0.0)
    # NaN counts as the largest, as in torch; argmax of it might be an expert that does not exist.
    choice = tl.where(choice < 3.0e38, choice, 3.0e38)
    choice = tl.where(mask_e, choice, float("-inf"))
    if NUM_GROUPS > 1:
        offs_g = tl.arange(0, BLOCK_G)
        is_member = (offs_e // group_size)[None, :] == offs_g[:, None]
        # [BLOCK_G, BLOCK_E]
        members = tl.where(is_member, choice[None, :], float("-inf"))
        best = tl.max(members, axis=1)
        if HAS_BIAS:
            first = tl.argmax(members, axis=1)
            rest = tl.where(offs_e[None, :] == first[:, None], float("-inf"), members)
            best += tl.max(rest, axis=1)
        best = tl.where(offs_g < NUM_GROUPS, best, float("-inf"))
        allowed = tl.zeros([BLOCK_E], dtype=tl.int32)
        for _ in tl.static_range(TOP_GROUPS):
            group = tl.argmax(best, axis=0)
            allowed = tl.where(offs_e // group_size == group, 1, allowed)
            best = tl.where(offs_g == group, float("-inf"), best)
        choice = tl.where(allowed > 0, choice, float("-inf"))
    offs_k = tl.arange(0, BLOCK_K)
    chosen = tl.zeros([BLOCK_K], dtype=tl.int32)
    weights = tl.zeros([BLOCK_K], dtype=tl.float32)
    for k in tl.static_range(TOP_K):
        expert = tl.argmax(choice, axis=0)
        is_expert = offs_e == expert
        score = tl.sum(tl.where(is_expert, scores, 0.0), axis=0)
        chosen = tl.where(offs_k == k, expert, chosen)
        weights = tl.where(offs_k == k, score, weights)
        choice = tl.where(is_expert, float("-inf"), choice)
    if RENORMALISE:
        weights = weights / tl.sum(weights, axis=0)
    mask_k = offs_k < TOP_K
    tl.store(weight_ptr + token * TOP_K + offs_k, weights * scale, mask=mask_k)
    tl.store(expert_ptr + token * TOP_K + offs_k, chosen, mask=mask_k)


def route_topk(
    logits: torch.Tensor,
    top_k: int,
    scoring: str,
    renormalise: bool,
    bias: torch.Tensor | None,
    num_groups: int,
    top_groups: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch one program per token; arguments as `pagoda_kernels.route_topk`."""
    num_tokens, num_experts = logits.shape
    weights = torch.empty(num_tokens, top_k, dtype=torch.float32, device=logits.device)
    experts = torch.empty(num_tokens, top_k, dtype=torch.int32, device=logits.device)
    if num_tokens == 0:
        return weights, experts
    with on_device_of(logits):
        route_topk_kernel[(num_tokens,)](
            logits,
            logits if bias is None else bias.contiguous(),
            weights,
            experts,
            float(scale),
            logits.stride(0),
            num_experts,
            num_experts // num_groups,
            IS_SIGMOID=scoring == "sigmoid",
            RENORMALISE=renormalise,
            HAS_BIAS=bias is not None,
            NUM_GROUPS=num_groups,
            TOP_GROUPS=top_groups,
            TOP_K=top_k,
            BLOCK_E=next_power_of_2(num_experts),
            BLOCK_G=next_power_of_2(num_groups),
            BLOCK_K=next_power_of_2(top_k),
            num_warps=1 if num_groups == 1 else 4,
        )
    return weights, experts
