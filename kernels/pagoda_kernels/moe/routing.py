"""Which experts every token goes to, and how much each counts.

Knows router logits. Knows nothing of the experts' weights (see `moe`).
"""

import torch

from pagoda_kernels.checks import check_float, check_fp32, check_last_dim_dense, check_shape

SCORINGS = ("softmax", "sigmoid")


def route_topk(
    logits: torch.Tensor,
    top_k: int,
    *,
    scoring: str = "softmax",
    renormalise: bool = False,
    bias: torch.Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `top_k` experts of every token by ``score(logits) + bias``, weighted by the score.

    With groups only experts of the `top_groups` best groups of neighbours are taken, a group being
    as good as its best expert or, with a bias, the sum of its two best (DeepSeek-V2 and -V3).
    Of equal scores the lower expert wins.

    Args:
        logits: ``[T, E]`` fp32, fp16 or bf16; rows dense.
        top_k: experts per token, 1 to E.
        scoring: "softmax" over all experts or "sigmoid".
        renormalise: divide the weights of a token by their sum.
        bias: ``[E]`` fp32, decides the choice only.
        num_groups: equal groups of experts; 1 for none.
        top_groups: groups to choose from.
        scale: factor of the weights, after renormalisation.

    Returns:
        (weights ``[T, top_k]`` fp32, experts ``[T, top_k]`` int32), best first.

    Raises:
        ValueError: shapes, dtypes or devices do not fit, or no such scoring.
    """
    check_shape("logits", logits, (None, None))
    check_float("logits", logits)
    check_last_dim_dense("logits", logits)
    num_experts = logits.shape[1]
    if scoring not in SCORINGS:
        raise ValueError(f"scoring: expected one of {SCORINGS}, got {scoring!r}")
    if bias is not None:
        check_shape("bias", bias, (num_experts,))
        check_fp32("bias", bias, logits.device)
    if num_experts % num_groups or not 1 <= top_groups <= num_groups:
        raise ValueError(
            f"num_groups: expected a divisor of {num_experts} experts, at least {top_groups}, "
            f"got {num_groups}"
        )
    most = num_experts // num_groups * top_groups
    if not 1 <= top_k <= most:
        raise ValueError(f"top_k: expected 1 to {most}, got {top_k}")
    if logits.is_cuda:
        from pagoda_kernels.moe.triton.routing import route_topk as route_topk_triton

        return route_topk_triton(
            logits, top_k, scoring, renormalise, bias, num_groups, top_groups, scale
        )
    scores = logits.float().softmax(1) if scoring == "softmax" else logits.float().sigmoid()
    choice = scores if bias is None else scores + bias
    if num_groups > 1:
        groups = choice.reshape(len(choice), num_groups, num_experts // num_groups)
        best = groups.amax(2) if bias is None else groups.topk(2, 2).values.sum(2)
        kept = best.sort(descending=True, stable=True).indices[:, :top_groups]
        allowed = torch.zeros_like(best, dtype=torch.bool).scatter_(1, kept, True)
        choice = groups.masked_fill(~allowed[..., None], float("-inf")).flatten(1)
    experts = choice.sort(descending=True, stable=True).indices[:, :top_k]
    weights = scores.gather(1, experts)
    if renormalise:
        weights = weights / weights.sum(1, keepdim=True)
    return weights * scale, experts.int()
