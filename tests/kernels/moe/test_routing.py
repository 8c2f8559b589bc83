import pytest
import torch

from pagoda_kernels.moe import reference
from pagoda_kernels.moe.routing import route_topk
from pagoda_kernels.moe.triton.routing import route_topk as triton_route_topk

DEFAULTS = {
    "scoring": "softmax",
    "renormalise": False,
    "bias": None,
    "num_groups": 1,
    "top_groups": 1,
    "scale": 1.0,
}
RULES = {
    "plain": {},
    "renormalised": {"renormalise": True, "scale": 2.5},
    "sigmoid": {"scoring": "sigmoid", "renormalise": True},
    "groups": {"num_groups": 4, "top_groups": 2},
    "deepseek-v3": {
        "scoring": "sigmoid", "num_groups": 4, "top_groups": 2, "renormalise": True,
        "has_bias": True,
    },
}  # fmt: skip


def run(path, logits, top_k, **options):
    if path == "cpu":
        return route_topk(logits, top_k, **options)
    return triton_route_topk(logits, top_k, **(DEFAULTS | options))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "top_k"), [(1, 8, 2), (17, 60, 6), (9, 64, 8)]
)
def test_matches_reference(path, device, rule, num_tokens, num_experts, top_k, assert_close):
    options = dict(rule)
    if options.pop("has_bias", False):
        options["bias"] = torch.randn(num_experts, device=device)
    logits = torch.randn(num_tokens, num_experts, device=device)
    weights, experts = run(path, logits, top_k, **options)
    want_weights, want_experts = reference.route_topk(logits, top_k, **options)
    assert torch.equal(experts, want_experts)
    assert_close(weights, want_weights)


def test_takes_any_dtype_and_rows_apart(path, device, dtype, assert_close):
    logits = torch.randperm(5 * 40, device=device).reshape(5, 40).to(dtype)[:, 8:24] / 16
    weights, experts = run(path, logits, 3)
    want_weights, want_experts = reference.route_topk(logits, 3)
    assert torch.equal(experts, want_experts)
    assert_close(weights, want_weights)


def test_of_equal_scores_the_lower_expert_wins(path, device):
    weights, experts = run(path, torch.zeros(2, 12, device=device), 3)
    assert experts.tolist() == [[0, 1, 2]] * 2
    assert torch.allclose(weights, torch.full_like(weights, 1 / 12))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, interpreted
@pytest.mark.parametrize("rule", ["plain", "groups", "sigmoid"])
def test_what_is_no_number_goes_to_experts_that_there_are(path, device, rule):
    """And spoils the rows that have it, not others."""
    logits = torch.randn(3, 60, device=device)
    logits[1] = logits[2, 7] = float("nan")
    weights, experts = run(path, logits, 6, **RULES[rule])
    want_weights, want_experts = reference.route_topk(logits, 6, **RULES[rule])
    assert torch.equal(experts, want_experts)
    assert torch.equal(weights.isnan(), want_weights.isnan())


@pytest.mark.parametrize("options", [{}, {"num_groups": 4, "top_groups": 2}])
def test_takes_no_tokens(path, device, options):
    weights, experts = run(path, torch.ones(0, 8, device=device), 2, **options)
    assert weights.shape == experts.shape == (0, 2)


def test_says_what_does_not_fit():
    logits = torch.ones(2, 12)
    with pytest.raises(ValueError, match="top_k: expected 1 to 6, got 7"):
        route_topk(logits, 7, num_groups=4, top_groups=2)
    with pytest.raises(ValueError, match="num_groups: expected a divisor of 12 experts"):
        route_topk(logits, 2, num_groups=5)
    with pytest.raises(ValueError, match=r"scoring: expected one of .*, got 'tanh'"):
        route_topk(logits, 2, scoring="tanh")
    with pytest.raises(ValueError, match=r"bias: expected shape \[12\], got \[3\]"):
        route_topk(logits, 2, bias=torch.ones(3))
