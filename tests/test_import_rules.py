"""What a module brings into a fresh interpreter: decisions bring no tensors, the command line nothing slow."""

import subprocess
import sys

import pytest

SLOW = ("torch", "transformers")


def loaded_by(module: str) -> set[str]:
    """Names in sys.modules after importing `module` and all its submodules in a new interpreter."""
    script = f"""
import importlib, pkgutil, sys
module = importlib.import_module({module!r})
for found in pkgutil.walk_packages(getattr(module, "__path__", []), module.__name__ + "."):
    importlib.import_module(found.name)
print("\\n".join(sys.modules))
"""
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_the_scheduler_imports_no_tensors_and_no_settings() -> None:
    loaded = loaded_by("echo_sched.scheduler")
    assert "echo_sched.scheduler.policy" in loaded
    assert not loaded & {*SLOW, "pydantic", "echo_sched.config", "echo_sched.engine"}


@pytest.mark.parametrize(
    "module",
    [
        *("tree", "types", "text", "prompts", "config", "arms", "errors", "notice", "report", "heads", "plots"),
        *("closed_loop", "flags", "fetch", "cli"),
    ],
)
def test_the_ground_floor_and_the_command_line_import_no_tensors(module: str) -> None:
    loaded = loaded_by(f"echo_sched.{module}")
    assert f"echo_sched.{module}" in loaded
    assert not loaded & set(SLOW)


def test_the_simulator_imports_no_tensors() -> None:
    loaded = loaded_by("calibration.simulate.main")
    assert {"calibration.trace", "calibration.simulate.replay", "calibration.simulate.clairvoyant"} <= loaded
    assert not loaded & {*SLOW, "echo_sched.engine", "echo_sched.loop"}


def test_the_check_can_see_torch() -> None:
    assert "torch" in loaded_by("echo_sched.engine.kv")
