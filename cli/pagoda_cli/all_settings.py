"""The settings models of the whole platform, for checking and documenting them together."""

import importlib

from pydantic_settings import BaseSettings

from pagoda_runtime.configuration.names import SERVICES
from pagoda_runtime.configuration.settings import CommonSettings


def settings_of(service: str) -> type[BaseSettings]:
    """Return the settings model of one service, `<Service>Settings` in its config.py."""
    module = importlib.import_module(f"pagoda_{service}.config")
    model: type[BaseSettings] = getattr(module, f"{service.capitalize()}Settings")
    return model


def all_settings() -> dict[str, type[BaseSettings]]:
    """Return every model by its owner's name, the common one first."""
    return {"common": CommonSettings} | {service: settings_of(service) for service in SERVICES}
