"""Typed access to the fields of a JSON configuration. Errors name the file and the field."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagoda_engine.checkpoints.regular_file import open_regular
from pagoda_engine.errors import CheckpointError

MAX_VALUE_CHARS = 200

_MISSING = object()


class ConfigReader:
    """One JSON object of a model folder. A field that is null counts as absent; see `boolean`."""

    def __init__(
        self, path: Path, fields: Mapping[str, Any], aliases: Mapping[str, str] | None = None
    ) -> None:
        """Keep an object.

        Args:
            path: of its file.
            fields: by name.
            aliases: what this file calls a field, by the name that readers use.
        """
        self.path = path
        self.fields = fields
        self._aliases = aliases or {}

    @classmethod
    def open(cls, path: Path) -> "ConfigReader":
        """Read a file.

        Raises:
            CheckpointError: there is none, or it holds no JSON object.
        """
        try:
            with open_regular(path) as file:
                fields = json.loads(file.read().decode("utf-8"))
        except OSError as error:
            raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise CheckpointError(path, f"is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise CheckpointError(path, "is not a JSON object")
        return cls(path, fields)

    def renamed(self, aliases: Mapping[str, str]) -> "ConfigReader":
        """Return the same object for readers that use other names for some of its fields.

        What this file itself calls otherwise keeps its name.
        """
        return ConfigReader(self.path, self.fields, {**aliases, **self._aliases})

    def replaced(self, **fields: Any) -> "ConfigReader":
        """Return the same object with some fields as given, under the names that readers use."""
        return ConfigReader(self.path, {**self.fields, **fields}, self._aliases)

    def integer(self, name: str, default: object = _MISSING) -> int:
        """Return a positive integer below 2**31."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
            raise self._wrong(name, value, "a positive integer below 2**31")
        return value

    def bounded(self, name: str, highest: int) -> int:
        """Return a positive integer that no model exceeds."""
        value = self.integer(name)
        if value > highest:
            raise CheckpointError(
                self.path, f"{self._name(name)} is {value}, must be at most {highest}"
            )
        return value

    def number(self, name: str, default: object = _MISSING) -> float:
        """Return a positive number."""
        value = self._get(name, default)
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not 0 < value <= sys.float_info.max  # whole numbers have no end
        ):
            raise self._wrong(name, value, "a positive number")
        return float(value)

    def optional_number(self, name: str, default: float | None = None) -> float | None:
        """Return a positive number; None if it is null, the default if it is not there."""
        if self._name(name) not in self.fields:
            return default
        return self.number(name) if self.has(name) else None

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of positive numbers."""
        values = self._get(name, _MISSING)
        if not isinstance(values, list):
            raise self._wrong(name, values, "a list of numbers")
        return tuple(ConfigReader(self.path, {name: value}).number(name) for value in values)

    def strings(self, name: str, length: int) -> tuple[str, ...]:
        """Return a list of so many strings."""
        values = self._get(name, _MISSING)
        if not isinstance(values, list) or len(values) != length:
            raise self._wrong(name, values, f"a list of {length} strings")
        return tuple(ConfigReader(self.path, {name: value}).string(name) for value in values)

    def boolean(self, name: str, default: object = _MISSING) -> bool:
        """Return a truth value; null is false, as to transformers, whatever absent means."""
        if self._name(name) in self.fields and not self.has(name):
            return False
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def string(self, name: str, default: object = _MISSING) -> str:
        """Return a string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def has(self, name: str) -> bool:
        """Tell whether the field is there and not null."""
        return self.fields.get(self._name(name)) is not None

    def section(self, name: str) -> "ConfigReader":
        """Return a nested object."""
        value = self._get(name, _MISSING)
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return ConfigReader(self.path, value)

    def token_ids(self, name: str) -> frozenset[int]:
        """Return a field that is absent, one token id or a list of them."""
        value = self._get(name, [])
        ids = value if isinstance(value, list) else [value]
        if not all(type(i) is int and 0 <= i < 2**31 for i in ids):
            raise self._wrong(name, value, "token ids")
        return frozenset(ids)

    def _wrong(self, name: str, value: object, wanted: str) -> CheckpointError:
        text = repr(value)
        shown = text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."
        return CheckpointError(self.path, f"{self._name(name)} is {shown}, must be {wanted}")

    def _name(self, name: str) -> str:
        """Return what the file calls a field."""
        return name if self.fields.get(name) is not None else self._aliases.get(name, name)

    def _get(self, name: str, default: object) -> Any:
        value = self.fields.get(self._name(name))
        if value is not None:
            return value
        if default is _MISSING:
            raise CheckpointError(self.path, f"{self._name(name)} is missing")
        return default
