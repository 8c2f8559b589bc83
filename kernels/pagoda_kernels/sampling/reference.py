"""Readable twins of the sampling operators: one row and one token at a time, exact integers."""

import torch

from pagoda_kernels.sampling.rows import MASS_ONE, SamplingRows

_LOW32 = 2**32 - 1


def philox_uniform(seed: int, index: int, stream: int = 0) -> float:
    """Philox4x32-10 with key `seed` and counter (index, stream, 0, 0): 53 bits in [0, 1)."""
    c0, c1, c2, c3 = index, stream, 0, 0
    k0, k1 = seed & _LOW32, seed >> 32
    for _ in range(10):
        product0, product1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & _LOW32,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & _LOW32,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _LOW32, (k1 + 0xBB67AE85) & _LOW32
    return float((c0 >> 5 << 26 | c1 >> 6) * 2.0**-53)


def sample_tokens(logits: torch.Tensor, rows: SamplingRows) -> tuple[list[int], list[bool]]:
    """(token ids, whether valid)."""
    token_ids, is_valid = [], []
    for row in range(len(logits)):
        values = logits[row].float().cpu()
        is_valid.append(bool(values.max().isfinite()))
        token_ids.append(_sample_row(values, rows, row) if is_valid[-1] else 0)
    return token_ids, is_valid


def _sample_row(logits: torch.Tensor, rows: SamplingRows, row: int) -> int:
    temperature = rows.temperature[row].item()
    if temperature == 0:
        return int(logits.argmax())
    scaled = (logits - logits.max()) / temperature
    sigma = logits[logits.isfinite()].double().std(correction=0)
    if num_sigmas := rows.top_n_sigma[row].item():
        scaled[logits < logits.max() - num_sigmas * sigma] = -torch.inf
    top_k = int(rows.top_k[row])
    if 0 < top_k < len(scaled):
        scaled[scaled < scaled.sort(descending=True).values[top_k - 1]] = -torch.inf
    probs = scaled.softmax(0)
    typical_p = int(rows.typical_p[row]) / MASS_ONE
    if typical_p < 1:
        information = -probs.double().log()
        entropy = (probs * information)[probs > 0].sum()
        distances = (information - entropy).abs()
        order = distances.argsort()
        num = int((probs[order].double().cumsum(0) < typical_p).sum()) + 1
        scaled[distances > distances[order[:num]].max()] = -torch.inf
        probs = scaled.softmax(0)
    top_p = int(rows.top_p[row]) / MASS_ONE
    if top_p < 1:
        threshold, reached = torch.inf, 0.0
        for prob in probs.sort(descending=True).values.tolist():
            if reached >= top_p and threshold < torch.inf:
                break
            threshold, reached = prob, reached + prob
        probs[probs < threshold] = 0
    probs[probs < probs.max() * rows.min_p[row].float().cpu()] = 0
    lowest = rows.xtc_threshold[row].item() * probs.sum()
    if lowest < probs.sum() and (probs >= lowest).any():
        probs[probs > probs[(probs >= lowest) & (probs > 0)].min()] = 0
    seed = int(rows.seeds[row]) % 2**64
    target = philox_uniform(seed, int(rows.indices[row])) * sum(probs.tolist())
    reached = 0.0
    for token_id, prob in enumerate(probs.tolist()):
        reached += prob
        if reached > target:
            return token_id
    return int(probs.nonzero()[-1])


def penalise_logits(
    logits: torch.Tensor,
    output_counts: torch.Tensor,
    in_prompt: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Token by token, for the tokens that were seen."""
    out = logits.float().clone()
    for row, token in (in_prompt | (output_counts > 0)).nonzero().tolist():
        value, count = out[row, token], output_counts[row, token].float()
        value = value / repetition[row] if value > 0 else value * repetition[row]
        out[row, token] = value - frequency[row] * count - presence[row] * (count > 0)
    return out
