import random

import pytest

from pagoda_engine import ComputedBlocks, ComputedLayers
from pagoda_prefill.exported_layers import ExportedLayers

NUM_LAYERS = 4


class RecordingPush:
    """Takes blocks and notes each (block, layer), where it is, and whether it was waited for."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, int, bool]] = []

    async def send(self, first_block, block_ids, *, layers=None, wait=None) -> None:
        for index, block_id in enumerate(block_ids, first_block):
            for layer in layers or range(NUM_LAYERS):
                self.sent.append((index, layer, block_id, wait is not None))


@pytest.fixture
def push() -> RecordingPush:
    return RecordingPush()


def layers_of(first_block: int, block_ids: tuple[int, ...], layers: range) -> ComputedLayers:
    return ComputedLayers("s", first_block, block_ids, layers.start, len(layers), lambda: None)


def once_each(sent: list[tuple[int, int, int, bool]], block_ids: dict[int, int]) -> bool:
    expected = [(i, layer, b) for i, b in block_ids.items() for layer in range(NUM_LAYERS)]
    return sorted(entry[:3] for entry in sent) == sorted(expected)


async def test_blocks_without_a_hint_are_sent_whole(push: RecordingPush) -> None:
    exported = ExportedLayers(push, NUM_LAYERS, first_block=0)
    await exported.send_rest(ComputedBlocks("s", 0, (7, 8)))
    assert once_each(push.sent, {0: 7, 1: 8})
    assert not any(waits for *_, waits in push.sent)


async def test_layers_are_sent_early_and_the_rest_at_the_end(push: RecordingPush) -> None:
    exported = ExportedLayers(push, NUM_LAYERS, first_block=0)
    await exported.send_layers(layers_of(0, (7, 8), range(0, 2)))
    await exported.send_layers(layers_of(0, (7, 8), range(2, 3)))
    assert len(push.sent) == 2 * 3
    assert all(waits for *_, waits in push.sent)

    await exported.send_rest(ComputedBlocks("s", 0, (7, 8)))

    assert once_each(push.sent, {0: 7, 1: 8})
    assert not any(waits for *_, waits in push.sent[2 * 3 :])


async def test_last_layer_waits_until_the_engine_names_the_block(push: RecordingPush) -> None:
    exported = ExportedLayers(push, NUM_LAYERS, first_block=0)
    await exported.send_layers(layers_of(0, (7,), range(0, 4)))
    assert push.sent == []
    await exported.send_rest(ComputedBlocks("s", 0, (7,)))
    assert once_each(push.sent, {0: 7})


async def test_blocks_that_the_consumer_has_are_left_out(push: RecordingPush) -> None:
    exported = ExportedLayers(push, NUM_LAYERS, first_block=3)
    await exported.send_layers(layers_of(0, (4, 5), range(0, 2)))
    await exported.send_rest(ComputedBlocks("s", 0, (4, 5)))
    await exported.send_layers(layers_of(2, (6, 7, 8), range(0, 2)))
    await exported.send_rest(ComputedBlocks("s", 2, (6, 7, 8)))
    assert once_each(push.sent, {3: 7, 4: 8})


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_the_hints_each_layer_is_sent_once(push: RecordingPush, seed: int) -> None:
    rng = random.Random(seed)
    exported = ExportedLayers(push, NUM_LAYERS, first_block=0)
    block_ids = {index: rng.randrange(100) for index in range(12)}
    first = 0
    while first < len(block_ids):
        end = rng.randrange(first, len(block_ids)) + 1
        ids = tuple(block_ids[index] for index in range(first, end))
        for _ in range(rng.randrange(4)):
            start = rng.randrange(NUM_LAYERS)
            layers = range(start, rng.randrange(start, NUM_LAYERS) + 1)
            skip = rng.randrange(len(ids))
            await exported.send_layers(layers_of(first + skip, ids[skip:], layers))
        await exported.send_rest(ComputedBlocks("s", first, ids))
        first = end
    assert once_each(push.sent, block_ids)
