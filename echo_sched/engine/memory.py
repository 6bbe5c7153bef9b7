"""How much memory a device has left, whatever the device."""

import psutil
import torch


def free_bytes(device: torch.device) -> int:
    """Free bytes of the accelerator, or available bytes of the host for the CPU."""
    if device.type == "cpu":
        return int(psutil.virtual_memory().available)
    free, _ = torch.accelerator.get_memory_info(device)
    return int(free)


def resolve_device(name: str) -> torch.device:
    """The named device; "auto" is the accelerator that torch can use, else the CPU."""
    if name != "auto":
        return torch.device(name)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator if accelerator is not None else torch.device("cpu")
