"""The official OpenAI client's embeddings through the whole system, in both topologies."""

import math

import pytest
from support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TEXTS = ["What news from the battle, good my lord?\n" * 8, "the crown", "What news?", "the crown"]
MAX_ERROR = 0.02  # of bf16, whose batches round otherwise


def test_embeddings_are_alike_in_a_batch_alone_and_cached(any_stack: Stack) -> None:
    client = any_stack.openai()
    together = client.embeddings.create(model=any_stack.model, input=TEXTS)
    assert together.usage.prompt_tokens == together.usage.total_tokens > len(TEXTS)
    found = [entry.embedding for entry in together.data]
    assert [math.hypot(*values) for values in found] == pytest.approx([1] * 4, abs=1e-4)
    assert found[1] == pytest.approx(found[3], abs=MAX_ERROR)
    assert sum(a * b for a, b in zip(found[0], found[1], strict=True)) < 1 - MAX_ERROR
    for text, values in zip(TEXTS, found, strict=True):
        alone = client.embeddings.create(model=any_stack.model, input=text, encoding_format="float")
        assert alone.data[0].embedding == pytest.approx(values, abs=MAX_ERROR)


def test_the_first_dimensions_have_length_1(any_stack: Stack) -> None:
    client = any_stack.openai()
    whole = client.embeddings.create(model=any_stack.model, input="the crown").data[0].embedding
    first = client.embeddings.create(model=any_stack.model, input="the crown", dimensions=8)
    length = math.hypot(*whole[:8])
    expected = [value / length for value in whole[:8]]
    assert first.data[0].embedding == pytest.approx(expected, abs=5 * MAX_ERROR)


def test_a_long_list_keeps_its_order(any_stack: Stack) -> None:
    inputs = [[5 + i % 40, 6 + i // 40] for i in range(1000)]  # more than a queue holds
    client = any_stack.openai()
    data = client.embeddings.create(model=any_stack.model, input=inputs).data
    assert [entry.index for entry in data] == list(range(1000))
    for i in (0, 500, 999):
        alone = client.embeddings.create(model=any_stack.model, input=inputs[i]).data[0]
        assert alone.embedding == pytest.approx(data[i].embedding, abs=MAX_ERROR)
