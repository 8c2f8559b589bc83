from pagoda.rpc.v1 import kv_event_pb2
from pagoda_runtime.messaging.kv_events import TierBlocks
from pagoda_worker.tiers.device_blocks import DeviceBlocks

DEVICE = kv_event_pb2.TIER_DEVICE


def h(number: int) -> bytes:
    return number.to_bytes(16, "big")


async def test_last_change_of_each_block_counts() -> None:
    blocks = DeviceBlocks()
    assert not blocks.add([], [])
    assert blocks.add([h(1), h(2)], [])
    assert blocks.add([h(3)], [h(1)])
    assert blocks.take_changes() == [TierBlocks(DEVICE, [h(2), h(3)], [h(1)])]
    assert blocks.take_changes() == [TierBlocks(DEVICE, [], [])]
    assert await blocks.held() == [TierBlocks(DEVICE, [h(2), h(3)])]


async def test_block_that_came_back_is_held() -> None:
    blocks = DeviceBlocks()
    blocks.add([h(1)], [])
    blocks.add([], [h(1)])
    blocks.add([h(1)], [])
    assert blocks.take_changes() == [TierBlocks(DEVICE, [h(1)], [])]
    assert await blocks.held() == [TierBlocks(DEVICE, [h(1)])]


def test_block_that_a_step_both_stored_and_evicted_is_gone() -> None:
    blocks = DeviceBlocks()
    blocks.add([h(1)], [h(1)])
    assert blocks.take_changes() == [TierBlocks(DEVICE, [], [h(1)])]
