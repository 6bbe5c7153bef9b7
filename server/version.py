"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """`echo-sched`'s version, or "unknown" when it runs from a source tree that was never installed."""
    try:
        return version("echo-sched")
    except PackageNotFoundError:
        return "unknown"
