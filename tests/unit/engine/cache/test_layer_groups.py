"""Groups of layers: places, sizes, and how long a sequence a pool takes."""

import pytest

from pagoda_engine.cache.layer_groups import layer_groups


@pytest.mark.parametrize(
    ("windows", "num_windowed", "group_size"),
    [
        ((9, None), 1, 1),
        ((None, 9, 9, 9), 3, 1),
        ((9, 9, 9, None, None), 2, 2),  # a place of the last group is not used
        ((9, None, 5, None, 9, None, 7, None), 1, 4),
    ],
)
def test_every_layer_has_a_place_of_its_own(
    windows: tuple[int | None, ...], num_windowed: int, group_size: int
) -> None:
    groups = layer_groups(windows)
    assert groups is not None
    assert (groups.num_windowed, groups.group_size, groups.window) == (num_windowed, group_size, 9)
    assert len(set(groups.places)) == len(windows)
    assert all(0 <= place < group_size for _, place in groups.places)
    for window, (group, _) in zip(windows, groups.places, strict=True):
        assert (group == 0) == (window is None)


@pytest.mark.parametrize("windows", [(None, None), (9, 9), (9, None, None)])
def test_layers_that_gain_nothing_have_no_groups(windows: tuple[int | None, ...]) -> None:
    assert layer_groups(windows) is None


def test_names_tell_orders_and_windows_apart() -> None:
    orders = [(9, None), (None, 9), (8, None), (9, None, 9, None), (9, 9, None, None)]
    names = {groups.name for order in orders if (groups := layer_groups(order)) is not None}
    assert len(names) == len(orders)


@pytest.mark.parametrize("num_blocks", [1, 20, 61, 1000])
def test_the_longest_sequence_leaves_room_for_its_windowed_parts(num_blocks: int) -> None:
    groups = layer_groups((32, 32, 32, None))
    assert groups is not None
    longest = groups.longest_table(num_blocks, block_size=16, max_num_batched_tokens=64)
    most = groups.most_blocks(16, 64)
    assert longest >= num_blocks
    num_places = 4 * num_blocks
    assert longest + 3 * min(longest, most) <= num_places
    assert longest + 1 + 3 * min(longest + 1, most) > num_places
