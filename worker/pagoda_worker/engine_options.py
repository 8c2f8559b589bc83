"""Between a worker's settings and the engine's options: values one way, names the other.

The engine names its options; whoever reads an error set variables.
"""

import contextlib
import errno
import re
from collections.abc import Iterator
from dataclasses import fields

from pagoda_engine import CheckpointError, EngineOptions, InvalidConfigError, MemoryBudgetError
from pagoda_runtime.configuration.names import variable_names
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import ModelFolderError, SettingsError
from pagoda_worker.settings import WorkerSettings

COMMON = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "load_format",
    "speculation",
    "num_speculative_tokens",
    "speculation_output_bytes",
    "max_adapters",
    "max_adapter_rank",
)
"""Options that are settings of the whole system."""
SIZES = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
"""Options whose room is taken without having been reckoned before."""


def engine_options(settings: WorkerSettings, common: CommonSettings) -> EngineOptions:
    """Return what the settings say of the engine; options are named as they are."""
    names = [field.name for field in fields(EngineOptions)]
    return EngineOptions(
        **{name: getattr(common if name in COMMON else settings, name) for name in names}
    )


@contextlib.contextmanager
def settings_errors(settings_class: type[WorkerSettings]) -> Iterator[None]:
    """Say which setting is to blame for an engine that does not start, by its variable's name.

    Raises:
        SettingsError: the memory does not suffice, or a setting does not suit this machine.
        ModelFolderError: the model cannot be used.
    """
    names = variable_names(CommonSettings) | variable_names(settings_class)
    try:
        yield
    except MemoryBudgetError as error:
        text = re.sub(r"`(\w+)`", lambda option: names[option[1]], str(error))
        raise SettingsError([text.replace("\n", "\n  ")]) from error
    except InvalidConfigError as error:
        name = names.get(error.what, error.what)
        raise SettingsError([f"{name} is {error.value!r}, must be {error.limit}"]) from error
    except CheckpointError as error:
        raise ModelFolderError(str(error)) from error
    except (MemoryError, OverflowError, OSError, RuntimeError) as error:
        if not _is_lack_of_memory(error):
            raise
        text = " or ".join(names[option] for option in SIZES)
        cause = str(error) or "out of memory"
        raise SettingsError(
            [f"there is no memory for the engine ({cause}): lower {text}, or give it more memory"]
        ) from error


def _is_lack_of_memory(error: Exception) -> bool:
    """Whether memory of so many bytes cannot be had, or not even be asked for."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # torch has no class for what a host does not have
    return not isinstance(error, RuntimeError) or "allocate memory" in str(error)
