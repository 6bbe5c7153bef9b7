"""How much memory a device has left, whatever the device."""

import psutil
import torch

from echo_sched.errors import ConfigError


def free_bytes(device: torch.device) -> int:
    """Free bytes of the accelerator, or available bytes of the host for the CPU."""
    if device.type == "cpu":
        return int(psutil.virtual_memory().available)
    free, _ = torch.accelerator.get_memory_info(device)
    return int(free)


def resolve_device(name: str) -> torch.device:
    """The named device; "auto" is the accelerator that torch can use, else the CPU. Raises ConfigError."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return accelerator if accelerator is not None else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name}: not a torch device") from error
    if device.type != "cpu" and (accelerator is None or device.type != accelerator.type):
        usable = "cpu" if accelerator is None else f"cpu and {accelerator.type}"
        raise ConfigError(f"--device {name}: torch {torch.__version__} can use {usable} on this machine")
    if device.index is not None and device.type != "cpu" and device.index >= torch.accelerator.device_count():
        raise ConfigError(f"--device {name}: there are {torch.accelerator.device_count()} devices")
    return device
