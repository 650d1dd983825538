"""What all kernels have in common."""

import importlib
import pkgutil

import pytest
from numba.core.dispatcher import Dispatcher

from cluster import kernels

DISPATCHERS = [
    pytest.param(value, id=f"{module.name}.{name}")
    for module in pkgutil.iter_modules(kernels.__path__)
    for name, value in vars(importlib.import_module(f"cluster.kernels.{module.name}")).items()
    if isinstance(value, Dispatcher)
]


@pytest.mark.parametrize("kernel", DISPATCHERS)
def test_other_threads_run_meanwhile_and_divisions_do_not_raise(kernel):
    assert kernel.targetoptions["nogil"]
    assert kernel.targetoptions["error_model"] == "numpy"
