"""The policy file: YAML (so JSON too), read once at the start; what is wrong in it is named."""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from pagoda_gateway.errors import shorten
from pagoda_gateway.safety.findings import Action, Direction
from pagoda_gateway.safety.patterns.expression import ExpressionError
from pagoda_gateway.safety.patterns.pattern_set import check_expression
from pagoda_runtime.errors import SettingsError

EVERYBODY = "*"
MAX_FILE_BYTES = 4 << 20
MAX_PATTERNS = 1000  # of one policy


def _checked(source: str) -> str:
    try:
        check_expression(source)
    except ExpressionError as error:
        raise ValueError(str(error)) from None
    return source


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Pattern = Annotated[str, AfterValidator(_checked)]


class SafetyFileError(SettingsError):
    """The policy file, or a file that it names, cannot be used; says where and what is wrong."""

    def __init__(self, *problems: str) -> None:
        super().__init__(problems)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Moderator(_Part):
    timeout_seconds: float = Field(2.0, gt=0, le=60, description="For one request's texts.")
    max_concurrent: int = Field(8, ge=1, le=256, description="Judged at once; others wait.")
    on_failure: Literal["closed", "open"] = Field(
        "closed", description="What it could not judge: refused, or let through."
    )
    window_chars: int = Field(1000, ge=16, le=100_000, description="Judged at a time.")
    overlap_chars: int = Field(200, ge=0, description="Of the text before, judged again.")

    @model_validator(mode="after")
    def _check_overlap(self) -> "_Moderator":
        if self.overlap_chars >= self.window_chars:
            raise ValueError(
                f"overlap_chars is {self.overlap_chars}; it must be below window_chars "
                f"{self.window_chars}"
            )
        return self


class HttpModeratorSettings(_Moderator):
    """A service with OpenAI's /v1/moderations."""

    kind: Literal["http"]
    url: str = Field(pattern=r"^https?://", description="Of the route itself.")
    model: str = ""
    api_key_file: Path | None = Field(None, description="Its first line is the key.")


class ClassifierSettings(_Moderator):
    """An ONNX text classifier, run in this process."""

    kind: Literal["classifier"]
    folder: Path = Field(description="Of model.onnx, tokenizer.json and config.json.")
    max_tokens: int = Field(512, ge=8, le=8192, description="Of one window; more are cut off.")


ModeratorSettings = Annotated[
    HttpModeratorSettings | ClassifierSettings, Field(discriminator="kind")
]


class RuleSettings(_Part):
    """What is looked for, where, and what is done about it."""

    name: Name
    where: list[Direction] = Field(["input", "output"], min_length=1)
    action: Action
    deny: list[Pattern] = []
    allow: list[Pattern] = []
    ignore_case: bool = True
    replacement: str = Field("[redacted]", max_length=64, pattern=r"^[^\"\\\x00-\x1f]*$")
    moderator: str | None = None
    thresholds: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        {}, description="Score of a category from which on it counts; none: as the moderator says."
    )

    @model_validator(mode="after")
    def _check_kind(self) -> "RuleSettings":
        if bool(self.deny) == bool(self.moderator):
            raise ValueError("give either 'deny', a list of patterns, or 'moderator', a name")
        if self.moderator and (self.action == "redact" or self.allow):
            raise ValueError(
                "a moderator judges whole texts: its rule can 'block' or 'flag', and has no 'allow'"
            )
        if self.thresholds and not self.moderator:
            raise ValueError("'thresholds' are for a rule with a 'moderator'")
        return self


class ResponseCacheSettings(_Part):
    """How long answers are kept for equal requests."""

    ttl_seconds: float = Field(3600.0, gt=0)


class PolicySettings(_Part):
    """Whose requests, and by which rules."""

    name: Name
    tenants: list[str] = Field(min_length=1, description='Their ids; "*": everybody.')
    models: list[str] = Field([EVERYBODY], min_length=1, description="Models' own names.")
    rules: list[RuleSettings] = []
    response_cache: ResponseCacheSettings | None = None

    @field_validator("rules")
    @classmethod
    def _check_rules(cls, rules: list[RuleSettings]) -> list[RuleSettings]:
        names = [rule.name for rule in rules]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"several rules are named {', '.join(doubled)}")
        num_patterns = sum(len(rule.deny) + len(rule.allow) for rule in rules)
        if num_patterns > MAX_PATTERNS:
            raise ValueError(f"there are {num_patterns} patterns; the limit is {MAX_PATTERNS}")
        return rules


class SafetyFile(_Part):
    """All of it. Of several policies that fit a request, the first one applies."""

    moderators: dict[Name, ModeratorSettings] = {}
    policies: list[PolicySettings] = []

    @model_validator(mode="after")
    def _check_names(self) -> "SafetyFile":
        names = [policy.name for policy in self.policies]
        if len(set(names)) < len(names):
            raise ValueError(f"policies need names of their own, not {', '.join(names)}")
        for policy in self.policies:
            for rule in policy.rules:
                if rule.moderator and rule.moderator not in self.moderators:
                    known = ", ".join(self.moderators) or "none"
                    raise ValueError(
                        f"rule {rule.name!r} of policy {policy.name!r} names the moderator "
                        f"{rule.moderator!r}; 'moderators' has {known}"
                    )
                if (
                    rule.moderator
                    and not rule.thresholds
                    and (self.moderators[rule.moderator].kind == "classifier")
                ):
                    raise ValueError(
                        f"rule {rule.name!r} of policy {policy.name!r} needs 'thresholds': a "
                        "classifier has scores, and no opinion which of them count"
                    )
        return self


def read_safety_file(path: Path) -> SafetyFile:
    """Return what a policy file says.

    Raises:
        SafetyFileError: it cannot be read, or something in it is wrong.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise SafetyFileError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
        return SafetyFile.model_validate(yaml.safe_load(raw) or {})
    except OSError as error:
        raise SafetyFileError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise SafetyFileError(f"{path} is not YAML: {error}") from error
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise SafetyFileError(
            *(f"{path}: {_place(problem['loc'])}{_what(problem)}" for problem in problems)
        ) from None


def _place(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return f"{path}: " if path else ""


def _what(problem: Any) -> str:
    if problem["type"] == "value_error":  # ours say what was given
        return str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return "there is no such field"
    return f"{problem['msg']}, not {shorten(problem['input'])}"
