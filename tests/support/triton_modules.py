"""Finds the modules that hold Triton kernels."""

import pkgutil
from importlib import import_module
from types import ModuleType

import pagoda_kernels


def triton_modules() -> list[ModuleType]:
    """Every module of `pagoda_kernels` that is, or lies in a folder, called ``triton``."""
    found = pkgutil.walk_packages(pagoda_kernels.__path__, "pagoda_kernels.")
    return [import_module(module.name) for module in found if "triton" in module.name.split(".")]
