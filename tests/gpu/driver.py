"""What the NVIDIA driver of this machine shows, without any of its tools. As a program it prints the first GPU's compute capability, "90", or
ends with 1 where there is none."""

import ctypes
import sys

COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


class NoGpu(Exception):
    """There is none, or no driver; the text says which."""


class DriverError(Exception):
    """A call of the driver has failed."""


def opened():
    """(the driver's library, how many GPUs it shows: one or more)"""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoGpu(f"no NVIDIA driver ({error})") from error
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0 or count.value == 0:
        raise NoGpu(f"the NVIDIA driver shows {count.value} (error {status})")
    return driver, count.value


def architecture():
    """"90" of the first GPU."""
    driver, _ = opened()
    parts = []
    for attribute in COMPUTE_CAPABILITY:
        value = ctypes.c_int(0)
        status = driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
        if status != 0:
            raise DriverError(f"cuDeviceGetAttribute: CUDA error {status}")
        parts.append(str(value.value))
    return "".join(parts)


if __name__ == "__main__":
    try:
        print(architecture())
    except (NoGpu, DriverError) as reason:
        sys.exit(str(reason))
