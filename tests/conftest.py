"""Profiles for the property tests: fixed seeds in `make test`, many more cases in evidence."""

import os

from hypothesis import settings

pytest_plugins = ["tests.browser"]

settings.register_profile("default", max_examples=60, deadline=None, derandomize=True)
settings.register_profile("evidence", max_examples=2_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Some virtual machines announce AMX and do not let it run: half precision would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
