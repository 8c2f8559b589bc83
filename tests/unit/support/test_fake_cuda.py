import pytest
import torch
from support.fake_cuda import DEVICE, captured, fake_cuda


@pytest.mark.parametrize(
    ("look", "message"),
    [
        (lambda x: x.cpu(), "host and device meet"),
        (lambda x: x.to("cpu", non_blocking=True), "host and device meet"),
        (lambda x: torch.empty(4).to(DEVICE), "host and device meet"),
        (lambda x: x.copy_(torch.empty(4)), "host and device meet"),
        (lambda x: x.sum().item(), "_local_scalar_dense"),
        (lambda x: bool(x.any()), "_local_scalar_dense"),
        (lambda x: torch.cuda.synchronize(DEVICE), "the host waits"),
    ],
    ids=["cpu", "to_cpu", "to_cuda", "copy", "item", "bool", "synchronize"],
)
def test_a_capture_refuses_what_meets_the_host(look, message):
    with fake_cuda():
        x = torch.empty(4, device=DEVICE)
        with captured(), pytest.raises((AssertionError, RuntimeError), match=message):
            look(x)


def test_a_capture_takes_what_stays_on_the_device():
    with fake_cuda() as log:
        x = torch.empty(4, 6, device=DEVICE)
        with captured():
            x[1:, None, ::2].float()
            x[..., 2] = 1.0
            x[:2].copy_(x[2:])
            x[torch.empty(3, dtype=torch.int64, device=DEVICE), 0] += 1.0
            x.softmax(-1).topk(2).values.sum()
        assert not log.keys
