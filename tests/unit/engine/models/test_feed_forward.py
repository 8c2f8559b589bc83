import pytest
import torch

from pagoda_engine.models.description import ExpertsDescription
from pagoda_engine.models.feed_forward import Experts, Router
from pagoda_engine.models.linear import Linear
from pagoda_kernels.moe import reference
from pagoda_kernels.native import packed_linear

NUM_EXPERTS, PER_TOK, HIDDEN, WIDTH = 6, 2, 40, 24
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 0.02}


def make(seed: int, dtype: torch.dtype, norm_topk_prob: bool) -> tuple[Experts, torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * shape[-1] ** -0.5).to(dtype)

    router, gate_up = draw(NUM_EXPERTS, HIDDEN), draw(NUM_EXPERTS, 2 * WIDTH, HIDDEN)
    down = draw(NUM_EXPERTS, HIDDEN, WIDTH)
    shape = ExpertsDescription(NUM_EXPERTS, PER_TOK, WIDTH, norm_topk_prob, frozenset())
    experts = Experts(Router(Linear(router), None, shape), gate_up, down)
    return experts, router, gate_up, down


@pytest.mark.parametrize("is_packed", [True, False], ids=["packed", "plain"])
@pytest.mark.parametrize("norm_topk_prob", [True, False], ids=["normed", "not-normed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_tokens", [1, 7, 100])
def test_experts_are_those_of_the_reference(
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    num_tokens: int,
    dtype: torch.dtype,
    norm_topk_prob: bool,
    is_packed: bool,
) -> None:
    if not is_packed:
        monkeypatch.setattr(packed_linear, "can_pack", lambda *_: False)
    experts, router, gate_up, down = make(seed, dtype, norm_topk_prob)
    x = torch.randn(num_tokens, HIDDEN).to(dtype)
    weights, chosen = reference.route_topk(x @ router.T, PER_TOK, renormalise=norm_topk_prob)
    want = reference.fused_moe(x, gate_up, down, weights, chosen)
    found = experts(x)
    assert found.dtype is dtype
    error = (found.double() - want.double()).norm() / want.double().norm()
    assert error < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_tokens_result_does_not_depend_on_the_others(seed: int, dtype: torch.dtype) -> None:
    experts = make(seed, dtype, True)[0]
    x = torch.randn(40, HIDDEN).to(dtype)
    alone = torch.cat([experts(row) for row in x.split_with_sizes([1] * 40)])
    for num_tokens in (2, 9, 40):
        assert torch.equal(experts(x[:num_tokens]), alone[:num_tokens])
