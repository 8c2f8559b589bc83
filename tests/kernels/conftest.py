"""Fixtures of the kernel tests: random inputs, poisoned memory, and which path to run.

Without CUDA the Triton kernels run in Triton's interpreter, chosen here before they are defined.
"""

import os
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from support.seeds import seed_of_tests

if not torch.cuda.is_available():
    # Nor before any of Triton's own are: a test module that imports it, through whatever library,
    # has to do so in a test.
    assert "triton.language" not in sys.modules, "triton was imported before this file"
    os.environ["TRITON_INTERPRET"] = "1"

TOLERANCE = {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}
"""Largest ``|got - want| / |want|`` in Frobenius norms; bf16 is truncated when interpreted."""


@pytest.fixture(autouse=True)
def seed() -> int:
    """Seed torch, see `support.seeds`."""
    value = seed_of_tests()
    torch.manual_seed(value)
    return value


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what torch would leave uninitialised with NaN, so that no unwritten output passes."""

    def poison(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def make_poisoned(*args: object, **kwargs: object) -> torch.Tensor:
            made = make(*args, **kwargs)
            return made.fill_(float("nan")) if made.is_floating_point() else made

        return make_poisoned

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poison(getattr(owner, name)))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Keep torch to one thread, as one worker per core does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["cpu", "triton"])
def path(request: pytest.FixtureRequest) -> str:
    """Implementation under test."""
    return str(request.param)


@pytest.fixture
def device(path: str) -> torch.device:
    """Where the path's tensors live: Triton's on CUDA if there is any, else in the interpreter."""
    on_cuda = path == "triton" and torch.cuda.is_available()
    return torch.device("cuda" if on_cuda else "cpu")


@pytest.fixture(params=[torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Data type under test."""
    value = request.param
    assert isinstance(value, torch.dtype)
    return value


@pytest.fixture
def assert_close() -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Compare by relative error norm within the tolerance of the dtype."""

    def check(got: torch.Tensor, want: torch.Tensor) -> None:
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        wide = want.double().cpu()
        error = ((got.double().cpu() - wide).norm() / wide.norm().clamp_min(1e-30)).item()
        assert error <= TOLERANCE[want.dtype], f"relative error {error:.2e}"

    return check


@pytest.fixture(autouse=True)
def guarded_memory() -> Iterator[None]:
    """Let interpreted kernels touch only their tensors' memory, and race with nobody there."""
    if torch.cuda.is_available():
        yield
        return
    from support.memory_guard import guarded_launches

    with guarded_launches():
        yield


@pytest.fixture(autouse=True, scope="session")
def waste_nothing() -> Iterator[None]:
    """Have the interpreter do once what it need not do again."""
    if torch.cuda.is_available():
        yield
        return
    from support.quick_interpreter import quick_interpreter

    with quick_interpreter():
        yield
