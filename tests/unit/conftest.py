"""What several tests begin with: a checkout for the launcher and the set-up, an experiment to sweep."""

from pathlib import Path

import pytest
from checkouts import Checkout
from sweep_cases import SPEC


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture
def ready(checkout: Checkout) -> Checkout:
    checkout.set_up()
    return checkout


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SPEC)
    return path
