"""The bench files at sizes a CPU can do: their checks pass, see a wrong result, and their launches
and baselines run."""

import pytest
import torch
from gpu.kernels.cases import (
    bench_block_copy,
    bench_block_digest,
    bench_kv_write,
    bench_paged_attention,
    bench_rms_norm,
    bench_rope,
    bench_sampling,
    bench_silu_mul,
)

from pagoda_kernels import digest_pool

CPU = torch.device("cpu")
CASES = {
    "decode": lambda: bench_paged_attention.decode_case(CPU, 2, 127),
    "decode_d64": lambda: bench_paged_attention.decode_case(CPU, 1, 63, head_dim=64),
    "bounded": lambda: bench_paged_attention.bounded_case(CPU, [127, 9], "b2", 256),
    "prefill": lambda: bench_paged_attention.prefill_case(CPU, 63),
    "prefill_128": lambda: bench_paged_attention.prefill_case(CPU, 127, block_size=128),
    "kv_write": lambda: bench_kv_write.write_case(CPU, 63),
    "norm": lambda: bench_rms_norm.norm_case(CPU, 7, 128),
    "add_norm": lambda: bench_rms_norm.add_case(CPU, 7, 128),
    "rope": lambda: bench_rope.rope_case(CPU, 9),
    "silu_mul": lambda: bench_silu_mul.gate_case(CPU, 5, 100),
    "gather": lambda: bench_block_copy.gather_case(CPU, 3, num_layers=2),
    "draw": lambda: bench_sampling.sample_case(CPU, 4, "draw", vocab_size=500),
    "top_p": lambda: bench_sampling.sample_case(
        CPU, 4, "both", top_k=50, top_p=0.9, vocab_size=500
    ),
    "penalties": lambda: bench_sampling.penalty_case(CPU, 3, vocab_size=300),
    "scatter": lambda: bench_block_copy.scatter_case(CPU, 3, num_layers=2),
    "pool_to_pool": lambda: bench_block_copy.copy_case(CPU, 3, num_layers=2),
    "digest": lambda: bench_block_digest.digest_case(CPU, 3, num_layers=2),
    "digest_pool": lambda: bench_block_digest.digest_pool_case(CPU, 3, num_layers=2),
    "gather_digest": lambda: bench_block_digest.gather_case(CPU, 3, num_layers=2),
    "checked_scatter": lambda: bench_block_digest.scatter_case(CPU, 4, num_layers=2),
}


@pytest.mark.parametrize("name", CASES)
def test_check_passes_and_launch_runs(name):
    case = CASES[name]()
    assert case.check(1) <= case.tolerance
    case.build()()


@pytest.mark.parametrize(
    ("module", "operator", "name"),
    [
        (bench_paged_attention, "paged_attention", "decode"),
        (bench_kv_write, "write_kv", "kv_write"),
        (bench_rms_norm, "rms_norm", "norm"),
        (bench_rope, "apply_rope", "rope"),
        (bench_silu_mul, "silu_mul", "silu_mul"),
        (bench_block_copy, "scatter_blocks", "scatter"),
        (bench_block_copy, "copy_blocks", "pool_to_pool"),
        (bench_block_digest, "digest_pool", "digest_pool"),
        (bench_sampling, "penalise_logits", "penalties"),
    ],
)
def test_check_sees_an_operator_that_does_nothing(monkeypatch, module, operator, name):
    nothing = {
        "apply_rope": lambda q, k, *_: (q, k),
        "silu_mul": lambda x: x.chunk(2, -1)[0],
        "copy_blocks": lambda pool, ids, *_: digest_pool(pool, ids),
        "digest_pool": lambda pool, ids: digest_pool(pool, ids.flip(0)),
    }
    monkeypatch.setattr(module, operator, nothing.get(operator, lambda x, *_, **__: x))
    case = CASES[name]()
    assert not case.check(1) <= case.tolerance


@pytest.mark.parametrize("name", ["decode", "prefill"])
def test_sdpa_computes_the_same(name):
    torch.manual_seed(3)
    case = CASES[name]()
    got = case.baselines["sdpa"]()
    torch.manual_seed(3)
    want = case.baselines["sdpa"]()
    assert torch.equal(got(), want())


@pytest.mark.parametrize(
    "name",
    ["kv_write", "gather", "pool_to_pool", "digest_pool", "gather_digest", "checked_scatter"],
)
def test_plain_baselines_run(name):
    (build,) = CASES[name]().baselines.values()
    build()()


@pytest.mark.parametrize("name", ["draw", "top_p"])
def test_torch_samples_a_token_for_each_row(name):
    assert CASES[name]().baselines["torch"]()().shape == (4, 1)


def test_decode_counts_the_bytes_of_keys_and_values():
    case = bench_paged_attention.decode_case(CPU, 16, 8192)
    assert case.num_bytes == pytest.approx(16 * 8192 * 8 * 128 * 2 * 2, rel=0.01)
