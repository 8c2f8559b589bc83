"""Settings: environment variables into frozen models, with every problem reported at once.

Every variable starts with PAGODA_. A name that no model knows refuses to start, naming the nearest
valid one. An empty value counts as unset. Nothing else reads them from the environment; what others
named is read where it is used (HF_, OTEL_, CC). pydantic-settings' own source is switched off: it
takes no mapping in place of the process's environment, reads names in any case, and stops at the
first value that is not JSON.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from pagoda_formats.gguf_file import is_gguf
from pagoda_runtime.configuration.addresses import may_have_password, nats_address, redis_address
from pagoda_runtime.configuration.names import unknown_name_problems, variable_names
from pagoda_runtime.configuration.values import check_text, checked_value, expanded
from pagoda_runtime.errors import SettingsError

ModelName = Annotated[str, Field(min_length=1, max_length=256)]
"""What clients may call a model."""


_ADAPTER = re.compile(r"[A-Za-z0-9._-]{1,64}=[^,=]+")


def adapter_list(text: str) -> str:
    """Return `name=folder,name=folder`; raise ValueError if it is something else."""
    for pair in text.split(",") if text else ():
        if not _ADAPTER.fullmatch(pair):
            raise ValueError(
                f"{pair[:80]!r} must be name=folder, the name of letters, digits, dots, hyphens "
                "and underscores, 64 at most; give name=folder,name=folder, such as "
                "sql=/adapters/sql,chat=/adapters/chat"
            )
        expanded(Path(pair.partition("=")[2]))
    return text


class ServiceSettings(BaseSettings):
    """Base of all settings models: frozen, strict about names, filled by `load_settings` only."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _check_text(cls, value: Any, info: ValidationInfo) -> Any:
        check_text(cls.model_fields[str(info.field_name)].annotation, value)
        return value

    @field_validator("*")
    @classmethod
    def _check_value(cls, value: Any, info: ValidationInfo) -> Any:
        return checked_value(str(info.field_name), value)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take arguments only: the environment is read by `load_settings`."""
        return (init_settings,)


class CommonSettings(ServiceSettings):
    """What every process of the platform shares."""

    model_config = SettingsConfigDict(env_prefix="PAGODA_")

    home: Path = Field(
        default=Path(".pagoda"), description="Folder for run-time data: logs, ledger, NVMe tier"
    )
    model: str = Field(
        default="",
        description="Folder in Hugging Face layout, GGUF file, or hub name in the local cache; "
        "empty: demo",
    )
    model_name: str = Field(
        default="",
        description="Name clients ask for; empty: the name of the model's folder or file",
    )
    model_aliases: list[ModelName] = Field(
        default=[],
        max_length=16,
        description="Further names for the model, as JSON, such as "
        '["gpt-4o-mini"]; its decode workers announce them',
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Number format of activations; auto: the model's own"
    )
    speculation: Literal["auto", "ngram", "off"] = Field(
        default="auto",
        description="ngram: decode workers propose tokens that followed the same ones before in a "
        "prompt, its output or its tenant's earlier outputs, and verify several in one step. auto: "
        "where that changes no bit of an output, which is on a CPU with native operators, for "
        "dense models",
    )
    num_speculative_tokens: int = Field(
        default=7, ge=1, le=64, description="Tokens proposed for a sequence in one step at most"
    )
    speculation_output_bytes: int = Field(
        default=32 << 20,
        ge=0,
        le=1 << 34,
        description="Host memory of a decode worker for tenants' latest outputs, each found by its "
        "own tenant alone, 557056 bytes a tenant: tokens that followed the same ones there are "
        "proposed too; 0: only those of a sequence's own prompt and output",
    )
    draft_model: str = Field(
        default="",
        description="Small model with the same tokenizer, named as PAGODA_MODEL is: decode workers "
        "let it propose tokens too, in steps where that is measured to save time; it has KV of its "
        "own beside theirs. Turns speculation on where auto would not. Empty: none",
    )
    quantization: Literal["none", "int8", "int4"] = Field(
        default="none",
        description="Format of the weights in memory, made as they are read, for CPUs; the output "
        "projection has 8 bits in both. none: as the checkpoint has them",
    )
    kv_cache_dtype: Literal["auto", "fp8", "int8"] = Field(
        default="auto",
        description="Number format of cached K and V. fp8, int8: one byte each, with the scales of "
        "the checkpoint where it has them; as many blocks more fit. auto: as activations",
    )
    load_format: Literal["auto", "dummy"] = Field(
        default="auto",
        description="dummy: random weights from config.json alone, for benchmarks and capacity "
        "tests; outputs mean nothing. auto: the model's files",
    )
    adapters: Annotated[str, AfterValidator(adapter_list)] = Field(
        default="",
        description="LoRA adapters that workers load at start, as name=folder,name=folder; clients "
        "ask for <model>:<name>",
    )
    adapter_dir: Path | None = Field(
        default=None,
        description="Folder on the workers below which adapters may be loaded while they run; its "
        "file of what is loaded is followed. Empty: none can be",
    )
    max_adapters: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="LoRA adapters loaded at the same time at most; memory for so many is taken at "
        "the start. 0: none can be loaded",
    )
    max_adapter_rank: int = Field(
        default=16, ge=1, le=512, description="Rank of a LoRA adapter at most"
    )
    http_port: int = Field(default=8000, ge=1, le=65535, description="Port of the OpenAI API")
    topology: str = Field(
        default="disaggregated",
        description="disaggregated, aggregated, or prefill=P,decode=D (`pagoda up`)",
    )
    local_prefill: Literal["off", "auto"] = Field(
        default="auto",
        description=(
            "auto: a decode worker prefills by itself where that costs less time of all, that of "
            "the sequences included which wait for it there; off: prefill workers compute all "
            "prompts while there is one"
        ),
    )
    nats_url: Annotated[str, AfterValidator(nats_address)] = Field(
        default="nats://127.0.0.1:4222", description="NATS server"
    )
    nats_user: str = Field(
        default="", description="User at NATS, named after the service; empty: a token alone"
    )
    nats_token: SecretStr = Field(
        default=SecretStr(""), description="Token for NATS, or the password of PAGODA_NATS_USER"
    )
    redis_url: Annotated[str, AfterValidator(redis_address)] = Field(
        default="redis://127.0.0.1:6379/0", description="Redis, password included"
    )
    cluster_token: SecretStr = Field(
        default=SecretStr(""),
        description="Bearer token between processes (gRPC); empty on loopback only",
    )
    trace_dir: Path | None = Field(
        default=None, description="Folder for spans as JSON lines; empty: none"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least level logged"
    )
    log_format: Literal["json", "console"] = Field(
        default="json", description="One JSON object a line, or text"
    )

    @property
    def adapter_folders(self) -> dict[str, Path]:
        """The adapters to load at start: folders by name."""
        pairs = (pair.split("=", 1) for pair in self.adapters.split(",") if pair)
        return {name: expanded(Path(folder)) for name, folder in pairs}

    @property
    def served_model_name(self) -> str:
        """The name clients use for the model."""
        model = Path(self.model or "demo")
        return self.model_name or (model.stem if is_gguf(model) else model.name)


S = TypeVar("S", bound=BaseSettings)


def load_settings(cls: type[S], environ: Mapping[str, str] | None = None) -> S:
    """Return the settings that `environ` (None: the process's environment) gives for `cls`.

    Raises:
        SettingsError: unknown names or unusable values; lists every one of them.
    """
    variables = os.environ if environ is None else environ
    problems = unknown_name_problems(variables, [CommonSettings, cls])
    settings, value_problems = _build(cls, variables)
    problems += value_problems
    if problems or settings is None:
        raise SettingsError(problems)
    return settings


def validate_environment(
    models: Sequence[type[BaseSettings]], environ: Mapping[str, str] | None = None
) -> None:
    """Check all names and values for several models together, as `pagoda up` does.

    Raises:
        SettingsError: lists every problem of every model.
    """
    variables = os.environ if environ is None else environ
    problems = unknown_name_problems(variables, models, every_service=True)
    for model in models:
        problems += _build(model, variables)[1]
    if problems:
        raise SettingsError(problems)


def _build(cls: type[S], variables: Mapping[str, str]) -> tuple[S | None, list[str]]:
    values: dict[str, Any] = {}
    problems: list[str] = []
    names = variable_names(cls)
    for field, name in names.items():
        raw = variables.get(name, "")
        if not raw:
            continue
        if not _is_structured(cls.model_fields[field].annotation):
            values[field] = raw
            continue
        try:
            values[field] = json.loads(raw)
        except (ValueError, RecursionError) as error:
            problems.append(f"{name}={raw[:1000]!r}: not JSON ({error})")
    if problems:
        return None, problems
    try:
        # the prefix keeps pydantic from reading the process's environment beside `variables`
        return cls(_env_prefix="NOT_READ_", **values), []
    except ValidationError as error:
        return None, [_describe(cls, names, values, details) for details in error.errors()]


def _is_structured(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    return get_origin(annotation) in (list, tuple, set, frozenset, dict)


def _describe(
    cls: type[BaseSettings], names: Mapping[str, str], values: Mapping[str, Any], details: Any
) -> str:
    location = details["loc"]
    message = str(details["msg"]).removeprefix("Value error, ")
    if not location:
        return f"{cls.__name__}: {message}"
    field = str(location[0])
    name = names.get(field, field)
    if field not in values:
        return f"{name}: {message}"
    is_secret = cls.model_fields[field].annotation is SecretStr or may_have_password(
        str(values[field])
    )
    value = "(secret)" if is_secret else repr(values[field])
    return f"{name}={value}: {message}"
