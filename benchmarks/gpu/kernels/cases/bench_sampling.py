"""Penalties and sampling of a 128 k vocabulary, beside what torch and FlashInfer offer.

The floor counts one read of the logits; thresholds for top-k and top-p take more passes, from L2.
"""

from collections.abc import Callable

import torch

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.inputs import relative_error
from pagoda_kernels.sampling.reference import philox_uniform
from pagoda_kernels.sampling.rows import MASS_ONE, SamplingRows, plan_sampling, sampling_column
from pagoda_kernels.sampling.sample_tokens import penalise_logits, sample_tokens

VOCAB_SIZE = 128256
DIFFERING = 0.02
"""Share of rows that may differ from the CPU's: exp rounds differently at a threshold."""


def cases(device: torch.device) -> list[Case]:
    return [
        sample_case(device, 64, "temperature"),
        sample_case(device, 64, "top-p", top_p=0.9),
        sample_case(device, 64, "top-k top-p", top_k=50, top_p=0.9),
        penalty_case(device, 64, goal=0.85),
    ]


def sample_case(
    device: torch.device,
    num_rows: int,
    words: str,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    vocab_size: int = VOCAB_SIZE,
) -> Case:
    """Rows with seeds of their own, all with the same parameters."""

    def build() -> tuple[torch.Tensor, SamplingRows]:
        logits = 3 * torch.randn(num_rows, vocab_size, device=device)
        return logits, _rows(num_rows, top_k, top_p, device)

    return Case(
        op="sampling",
        name=f"{words} S{num_rows} V{vocab_size} fp32",
        check=lambda seed: _differing(seed, build),
        tolerance=DIFFERING,
        build=lambda: _sample(*build()),
        num_bytes=4 * num_rows * vocab_size,
        baselines={
            "torch": lambda: _torch(build()[0], top_k, top_p),
            "flashinfer": lambda: _flashinfer(build()[0], top_k, top_p),
        },
    )


def penalty_case(
    device: torch.device, num_rows: int, goal: float | None = None, vocab_size: int = VOCAB_SIZE
) -> Case:
    """Logits and counts read, one byte of prompt membership read, logits written."""
    return Case(
        op="sampling",
        name=f"penalties S{num_rows} V{vocab_size} fp32",
        check=lambda seed: _penalty_error(*_penalties(device, num_rows, vocab_size, seed)),
        tolerance=1e-6,
        build=lambda: _penalise(_penalties(device, num_rows, vocab_size)),
        num_bytes=(4 + 4 + 1 + 4) * num_rows * vocab_size,
        goal=goal,
    )


def _rows(num_rows: int, top_k: int, top_p: float, device: torch.device) -> SamplingRows:
    seeds = torch.randint(0, 2**62, (num_rows,)).tolist()
    columns = [
        sampling_column(temperature=0.8, top_k=top_k, top_p=top_p, seed=seed) for seed in seeds
    ]
    return plan_sampling(columns, range(num_rows), device)


def _sample(logits: torch.Tensor, rows: SamplingRows) -> Launch:
    return lambda: sample_tokens(logits, rows)


def _differing(seed: int, build: Callable[[], tuple[torch.Tensor, SamplingRows]]) -> float:
    """Share of tokens that are not what a sort in float64 and exact random numbers choose."""
    torch.manual_seed(seed)
    logits, rows = build()
    got, is_valid = sample_tokens(logits, rows)
    scaled = (logits - logits.amax(-1, keepdim=True)) / rows.temperature[:, None].float()
    top_k = int(rows.top_k[0])
    if top_k:
        scaled[scaled < scaled.topk(top_k).values[:, -1:]] = -torch.inf
    probs = torch.softmax(scaled.double(), -1)
    ordered, top_p = probs.sort(descending=True).values, rows.top_p.double() / MASS_ONE
    kept = ((ordered.cumsum(-1) - ordered) < top_p[:, None]).sum(-1, keepdim=True)
    probs[probs < ordered.gather(1, kept.clamp(min=1) - 1)] = 0
    cdf = probs.cumsum(-1)
    pairs = zip(rows.seeds.tolist(), rows.indices.tolist(), strict=True)
    numbers = [philox_uniform(*pair) for pair in pairs]
    uniforms = torch.tensor(numbers, dtype=torch.float64, device=logits.device)
    want = torch.searchsorted(cdf, uniforms[:, None] * cdf[:, -1:], right=True)[:, 0]
    return float((got != want).double().mean()) if bool(is_valid.all()) else float("nan")


def _torch(logits: torch.Tensor, top_k: int, top_p: float) -> Launch:
    def launch() -> torch.Tensor:
        scaled = logits / 0.8
        if top_k:
            scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[:, -1:], -torch.inf)
        probs = torch.softmax(scaled, -1)
        if top_p < 1:
            ordered, order = probs.sort(descending=True)
            ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= top_p, 0.0)
            probs = torch.zeros_like(probs).scatter_(1, order, ordered)
        return torch.multinomial(probs, 1)

    return launch


def _flashinfer(logits: torch.Tensor, top_k: int, top_p: float) -> Launch:
    from flashinfer import sampling

    if top_k:
        return lambda: sampling.top_k_top_p_sampling_from_logits(logits / 0.8, top_k, top_p)
    if top_p < 1:
        return lambda: sampling.top_p_sampling_from_probs(torch.softmax(logits / 0.8, -1), top_p)
    return lambda: sampling.sampling_from_probs(torch.softmax(logits / 0.8, -1))


def _penalties(
    device: torch.device, num_rows: int, vocab_size: int, seed: int | None = None
) -> tuple[torch.Tensor, ...]:
    """(logits, counts, in_prompt, repetition, frequency, presence)."""
    if seed is not None:
        torch.manual_seed(seed)
    logits = torch.randn(num_rows, vocab_size, device=device)
    counts = torch.randint(0, 3, logits.shape, device=device).float()
    in_prompt = torch.rand(logits.shape, device=device) < 0.2
    repetition, frequency, presence = torch.rand(3, num_rows, device=device) + 0.5
    return logits, counts, in_prompt, repetition, frequency, presence


def _penalise(arguments: tuple[torch.Tensor, ...]) -> Launch:
    return lambda: penalise_logits(*arguments)


def _penalty_error(*arguments: torch.Tensor) -> float:
    logits, counts, in_prompt, *factors = arguments
    wide = logits.double()
    repetition, frequency, presence = (factor.double()[:, None] for factor in factors)
    repeated = torch.where(wide > 0, wide / repetition, wide * repetition)
    wide = torch.where(in_prompt | (counts > 0), repeated, wide)
    want = wide - frequency * counts - presence * (counts > 0)
    return relative_error(penalise_logits(*arguments), want)
