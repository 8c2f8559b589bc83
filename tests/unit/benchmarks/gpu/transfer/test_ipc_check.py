import pytest
from gpu.transfer.ipc_check import check_ipc


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "kind"),
    [("cpu", "shared memory"), pytest.param("cuda", "CUDA IPC", marks=pytest.mark.gpu)],
)
def test_pool_of_another_process_is_read_also_after_its_death(device: str, kind: str) -> None:
    found = check_ipc(device, num_bytes=8 << 20)

    assert found.kind == kind
    assert found.is_equal
    assert found.finds_change
    assert found.is_readable_after_death, found.error
    assert found.read_gb_per_second > 0
