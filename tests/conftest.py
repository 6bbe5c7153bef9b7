"""What every test file shares: the folder of reference data, a small saved model, and who is skipped when."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no clock", deadline=None)  # how long an example takes says nothing about the code
settings.load_profile("no clock")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: threads of one waiting for each other while another's run cost minutes. Set before torch.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="the proof (tests/proof) at its full size, as make test-exact")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Prompt sets and traces that lie beside the repository and are never part of it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the reference data, ../shared/data, is not on this machine")
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model that every command can open; nobody may write into it."""
    from tests.tiny_models import save_tiny_model

    folder = tmp_path_factory.mktemp("model")
    save_tiny_model(folder)
    return folder


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("long") is not None and not item.config.getoption("--long"):
        pytest.skip("runs in make test-exact")
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.accelerator.is_available():
            pytest.skip("torch sees no accelerator on this machine")
