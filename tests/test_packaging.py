"""The built wheel in a clean environment: only our packages, and every command works beside look-alike folders."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from echo_sched.cli import COMMANDS

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = {"echo_sched", "server", "calibration", "benchmarks"}
HEAD_FILES = ("config.json", "model.safetensors", "README.md", "curve.svg")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files that the build reads, copied, so that an earlier build's leftovers change nothing.

    One more draft head ships with it than the repository has.
    """
    source = tmp_path_factory.mktemp("source") / "echo-sched"
    leftovers = shutil.ignore_patterns("__pycache__", ".*", "build", "dist", "*.egg-info")
    shutil.copytree(REPOSITORY, source, ignore=leftovers)
    head, cache = (source / "echo_sched" / "heads" / name for name in ("some-model-1b", "__pycache__"))
    head.mkdir()
    for name in HEAD_FILES:
        (head / name).write_text("")
    cache.mkdir()
    (cache / "leftover.pyc").write_text("")
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel. Dependencies come from this interpreter's packages, our code does not."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "install",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*pip, "--quiet", "--disable-pip-version-check", str(wheel)], check=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    # a line in a .pth file adds a folder after our own, without running the .pth files inside it: no editable install
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """A working folder with packages of the same names, as a user may well have."""
    for name in ("server", "calibration"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('this is not the package you want')\n")
    return tmp_path


def run(environment: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    program = [str(environment / "bin" / command[0]), *command[1:]]
    return subprocess.run(program, cwd=folder, env=settings, capture_output=True, text=True, timeout=300)


def test_the_wheel_holds_our_packages_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == PACKAGES
    assert "echo_sched/py.typed" in names
    modules = {
        str(path.relative_to(REPOSITORY)) for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")
    }
    assert modules <= set(names)
    heads = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "echo_sched" / "heads").glob("[!_]*/*")}
    heads |= {f"echo_sched/heads/some-model-1b/{name}" for name in HEAD_FILES}
    assert heads <= set(names) and not any("__pycache__" in name for name in names)


def test_the_installed_code_is_the_wheels(environment: Path, decoys: Path) -> None:
    done = run(
        environment,
        decoys,
        "python",
        "-I",
        "-c",
        "import echo_sched, server; print(echo_sched.__file__, server.__file__)",
    )
    assert done.returncode == 0, done.stderr
    assert all(Path(file).is_relative_to(environment) for file in done.stdout.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, environment: Path, decoys: Path) -> None:
    done = run(environment, decoys, "echo-sched", *command.split(), "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: echo-sched {command}")


def test_the_door_lists_the_commands_and_refuses_others(environment: Path, decoys: Path) -> None:
    done = run(environment, decoys, "echo-sched", "--help")
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in COMMANDS)
    done = run(environment, decoys, "echo-sched", "serv")
    assert done.returncode == 2
    assert done.stderr == "error: unknown command 'serv'; did you mean `echo-sched serve`?\n"
