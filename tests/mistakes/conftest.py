"""Coroutines as tests."""

from tests.worker.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
