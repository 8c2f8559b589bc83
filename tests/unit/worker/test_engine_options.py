"""The engine names its options; what a user reads names variables."""

import errno
from dataclasses import fields

import pytest

from pagoda_decode.config import DecodeSettings
from pagoda_engine import EngineOptions, InvalidConfigError, MemoryBudgetError
from pagoda_prefill.config import PrefillSettings
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import SettingsError
from pagoda_worker.engine_options import COMMON, engine_options, settings_errors
from pagoda_worker.settings import WorkerSettings

OPTIONS = [field.name for field in fields(EngineOptions)]


def test_every_option_has_the_value_of_its_setting() -> None:
    settings = DecodeSettings(num_blocks=7, graph_batch_sizes=(1, 2), device="cpu")
    options = engine_options(
        settings,
        CommonSettings(
            dtype="float32", quantization="int4", speculation="off", load_format="dummy"
        ),
    )

    assert (options.dtype, options.quantization) == ("float32", "int4")
    assert options.load_format == "dummy"
    for name in set(OPTIONS) - set(COMMON):
        assert getattr(options, name) == getattr(settings, name)


@pytest.mark.parametrize("settings_class", [DecodeSettings, PrefillSettings])
@pytest.mark.parametrize("option", OPTIONS)
def test_a_remedy_names_the_variable(settings_class: type[WorkerSettings], option: str) -> None:
    error = MemoryBudgetError("no room", "gpu:\n  0 GiB", [f"raise `{option}` to 7", "a device"])
    with pytest.raises(SettingsError) as raised, settings_errors(settings_class):
        raise error

    prefix = settings_class.model_config["env_prefix"]
    variable = f"{'PAGODA_' if option in COMMON else prefix}{option.upper()}"
    assert f"no room\n  gpu:\n    0 GiB\n  What helps: raise {variable} to 7; or a device" in str(
        raised.value
    )


def test_a_limit_out_of_range_names_the_variable() -> None:
    with pytest.raises(SettingsError) as raised, settings_errors(DecodeSettings):
        raise InvalidConfigError("block_size", 0, "at least 1")

    assert "PAGODA_DECODE_BLOCK_SIZE is 0, must be at least 1" in str(raised.value)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        OverflowError("Python int too large to convert to C ssize_t"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    ],
)
def test_memory_that_cannot_be_had_names_the_variables(error: Exception) -> None:
    with (
        pytest.raises(SettingsError, match=r"no memory .*lower PAGODA_DECODE_MAX_NUM_SEQS or "),
        settings_errors(DecodeSettings),
    ):
        raise error


@pytest.mark.parametrize("error", [OSError(errno.EIO, "no disk"), RuntimeError("a defect")])
def test_what_is_no_lack_of_memory_is_left_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, settings_errors(DecodeSettings):
        raise error

    assert raised.value is error
