"""What all tiers share: one event loop library."""

import pytest


@pytest.fixture
def anyio_backend():
    """Antiphon runs on asyncio."""
    return "asyncio"
