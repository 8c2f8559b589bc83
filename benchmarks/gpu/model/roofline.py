"""What a step must cost: bytes and operations from a model's shape, seconds from the ceilings.

Two numbers for every step. The floor: the weights and the KV that it reads, over the copy
bandwidth (or its products over the matmul rate); no program is below it. The prediction: each
operator at its own floor, activations included, one after another; what a program with perfect
kernels and no gaps would take.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gpu.harness.ceilings import Ceilings
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.weights.num_bytes import weight_bytes


@dataclass(frozen=True)
class StepShape:
    """What one step computes.

    Attributes:
        seqlens_q: new tokens of each sequence.
        context_lens: KV tokens that each sequence has afterwards.
    """

    seqlens_q: tuple[int, ...]
    context_lens: tuple[int, ...]

    @classmethod
    def decode(cls, batch: int, context: int) -> "StepShape":
        """One token of each of `batch` sequences."""
        return cls((1,) * batch, (context,) * batch)

    @property
    def num_tokens(self) -> int:
        """New tokens of all sequences."""
        return sum(self.seqlens_q)

    @property
    def num_pairs(self) -> int:
        """Query-key pairs under the causal mask."""
        pairs = zip(self.seqlens_q, self.context_lens, strict=True)
        return sum(new * (context - new) + new * (new + 1) // 2 for new, context in pairs)


@dataclass(frozen=True)
class Operator:
    """Bytes that it moves at least, and operations, multiply-adds counted twice."""

    num_bytes: float
    num_flops: float


@dataclass(frozen=True)
class Roofline:
    """Costs of one model in one dtype.

    Attributes:
        shape: of the model.
        dtype: of weights, activations and KV.
    """

    shape: DecoderDescription
    dtype: torch.dtype

    def floor_bytes(self, step: StepShape) -> float:
        """Weights that the step reads, each once, and the KV of all its contexts."""
        return self._weight_bytes(step.num_tokens) + self._kv_bytes(step)

    def floor_flops(self, step: StepShape) -> float:
        """Operations of all products."""
        return sum(operator.num_flops for operator in self._operators(step))

    def floor_seconds(self, step: StepShape, ceilings: Ceilings) -> float:
        """Least time of the step: the larger of its bytes' and its products'."""
        by_bytes = self.floor_bytes(step) / ceilings.copy_bytes_per_second
        return max(by_bytes, self.floor_flops(step) / ceilings.matmul_flops_per_second)

    def predicted_seconds(self, step: StepShape, ceilings: Ceilings) -> float:
        """The sum of its operators, each at its own floor."""
        bandwidth, rate = ceilings.copy_bytes_per_second, ceilings.matmul_flops_per_second
        return sum(max(o.num_bytes / bandwidth, o.num_flops / rate) for o in self._operators(step))

    def touched_experts(self, num_tokens: int) -> float:
        """Expected number of a layer's experts that T tokens go through.

        With k of E experts a token, each as likely as any other: ``E * (1 - (1 - k / E) ** T)``.
        """
        experts = self.shape.experts
        if experts is None:
            return 0.0
        missed = (1 - experts.num_experts_per_tok / experts.num_experts) ** num_tokens
        return experts.num_experts * (1 - missed)

    def _weight_bytes(self, num_tokens: int) -> float:
        shape, itemsize = self.shape, self.dtype.itemsize
        num_bytes = float(weight_bytes(shape, self.dtype))
        if not shape.tie_word_embeddings:  # of the embedding only a row for each token is read
            num_bytes -= (shape.vocab_size - num_tokens) * shape.hidden_size * itemsize
        experts = shape.experts
        if experts is not None:
            untouched = experts.num_experts - self.touched_experts(num_tokens)
            one = 3 * shape.hidden_size * experts.intermediate_size * itemsize
            num_bytes -= len(experts.layers) * untouched * one
        return num_bytes

    def _kv_bytes(self, step: StepShape) -> float:
        return sum(step.context_lens) * self.shape.kv_bytes_per_token(self.dtype)

    def _operators(self, step: StepShape) -> Iterator[Operator]:
        shape, tokens = self.shape, step.num_tokens
        hidden, num_sequences = shape.hidden_size, len(step.seqlens_q)
        q_width = shape.num_heads * shape.head_dim
        kv_width = 2 * shape.num_kv_heads * shape.head_dim
        kv_bytes = self._kv_bytes(step) / shape.num_layers
        for layer in range(shape.num_layers):
            yield self._moved(4 * tokens * hidden)  # norm: residual and input, both rewritten
            yield self._product(tokens, hidden, q_width + kv_width)
            yield self._moved(2 * tokens * (q_width + kv_width))
            attended_bytes = 2 * tokens * q_width * self.dtype.itemsize
            yield Operator(kv_bytes + attended_bytes, 4.0 * step.num_pairs * q_width)
            yield self._product(tokens, q_width, hidden)
            yield self._moved(4 * tokens * hidden)
            yield from self._feed_forward(layer, tokens)
        yield self._product(num_sequences, hidden, shape.vocab_size)
        yield self._moved(num_sequences * shape.vocab_size)  # the choice of tokens

    def _feed_forward(self, layer: int, tokens: int) -> Iterator[Operator]:
        shape, hidden = self.shape, self.shape.hidden_size
        experts = shape.experts
        if experts is None or layer not in experts.layers:
            inner = shape.intermediate_size
            yield self._product(tokens, hidden, 2 * inner)
            yield self._moved(3 * tokens * inner)
            yield self._product(tokens, inner, hidden)
            return
        inner, touched = experts.intermediate_size, self.touched_experts(tokens)
        rows = tokens * experts.num_experts_per_tok
        yield self._product(tokens, hidden, experts.num_experts)
        yield self._product(rows, hidden, 2 * inner, copies=touched)
        yield self._moved(3 * rows * inner)
        yield self._product(rows, inner, hidden, copies=touched)

    def _moved(self, num_elements: int) -> Operator:
        return Operator(num_elements * self.dtype.itemsize, 0)

    def _product(self, rows: int, inner: int, columns: int, copies: float = 1.0) -> Operator:
        """``[rows, inner] @ [inner, columns]``; `copies` weights of that shape are read."""
        elements = rows * (inner + columns) + copies * inner * columns
        return Operator(elements * self.dtype.itemsize, 2.0 * rows * inner * columns)
