"""What tests/gpu/drill has to do with the machine that it runs on: facts about it, an environment in which prebuilt programs start, and
processes with a limit. Only the standard library is used."""

import ctypes
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import time

import driver

DRIVERS_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib")
ATTRIBUTES = {"processors": 16, "l2_bytes": 38, "reads pageable memory": 88, "concurrent managed access": 89, "by the host's page tables": 100}


def session_members(session):
    """Living processes of a session."""
    members = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = pathlib.Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            members.append(int(entry))
    return members


class Program:
    """A program that runs in a session of its own, with its output in a log."""

    def __init__(self, words, log, env, cwd):
        self.words, self.log, self.rc = [str(word) for word in words], log, None
        with open(log, "ab") as output:
            output.write(("$ " + " ".join(self.words) + "\n").encode())
            output.flush()
            try:
                self.process = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=cwd,
                                                start_new_session=True)
            except OSError as error:
                self.process, self.rc = None, f"not started: {error.strerror}"

    def has_ended(self):
        if self.process is not None and self.process.poll() is not None:
            self.rc = self.process.returncode
            self.kill()  # what it has left
        return self.rc is not None

    def kill(self):
        for pid in session_members(self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def finish(programs, ends):
    """Waits for all of them until `ends` (time.monotonic()); who still runs then is killed, and has rc "timeout"."""
    while not all([program.has_ended() for program in programs]):
        if time.monotonic() > ends:
            for program in programs:
                if program.rc is None:
                    program.kill()
                    program.process.wait()
                    program.rc = "timeout"
            return
        time.sleep(0.02)


def packages_folders():
    """Where pip puts NVIDIA's libraries for this Python."""
    found = [path for folder in sys.path if folder.endswith("-packages") for path in pathlib.Path(folder).glob("nvidia/*/lib")]
    return [str(path) for path in found if any(path.glob("libnccl.so.2")) or any(path.glob("libcublasLt.so.*"))]


def environment(root, extra_folders=()):
    """In which the programs of the unpacked archive `root` run, on a GPU. mpirun ends where there is no ssh, unless it is to stay on its machine."""
    libraries = next(root.glob("usr/lib/*-linux-gnu"))
    folders = [str(libraries), *extra_folders, *filter(os.path.isdir, DRIVERS_FOLDERS), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    pmix = libraries / "pmix2"
    return {**os.environ, "PATH": f"{root}/usr/bin:{os.environ.get('PATH', '/usr/bin:/bin')}", "LD_LIBRARY_PATH": ":".join(folders),
            "OPAL_PREFIX": str(root / "usr"), "PMIX_INSTALL_PREFIX": str(pmix), "PMIX_PKGLIBDIR": str(pmix / "lib/pmix"),
            "PMIX_PKGDATADIR": str(pmix / "share/pmix"), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_plm": "isolated", "ZSHARD_TEST_GPU": "1"}


def first_line(*words):
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{words[0]}: {type(error).__name__}"
    return (done.stdout.strip().splitlines() or ["nothing"])[0]


def text_of(path, pattern):
    try:
        found = re.search(pattern, pathlib.Path(path).read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return "unknown"
    return found.group(1) if found else "unknown"


def preload_driver():
    """The driver from where it usually is, if the loader does not look there."""
    for folder in DRIVERS_FOLDERS:
        if os.path.isfile(f"{folder}/libcuda.so.1"):
            try:
                ctypes.CDLL(f"{folder}/libcuda.so.1", ctypes.RTLD_GLOBAL)
                return
            except OSError:
                pass


def gpu_facts():
    preload_driver()
    try:
        library, count = driver.opened()
        facts = {"GPUs": count, "compute capability": driver.architecture()}
    except (driver.NoGpu, driver.DriverError) as reason:
        return {"GPUs": 0, "reason": str(reason)}
    name, version, memory = ctypes.create_string_buffer(128), ctypes.c_int(0), ctypes.c_size_t(0)
    for key, call in {"name": lambda: library.cuDeviceGetName(name, 128, 0), "driver's CUDA": lambda: library.cuDriverGetVersion(ctypes.byref(version)),
                      "memory_bytes": lambda: library.cuDeviceTotalMem_v2(ctypes.byref(memory), 0)}.items():
        try:
            status = call()
            facts[key] = {"name": name.value.decode(), "driver's CUDA": version.value, "memory_bytes": memory.value}[key] if status == 0 else f"error {status}"
        except AttributeError:
            facts[key] = "not in this driver"
    for key, attribute in ATTRIBUTES.items():
        value = ctypes.c_int(0)
        status = library.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
        facts[key] = value.value if status == 0 else f"error {status}"
    return facts


def facts():
    fields = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit"
    return {"gpu": gpu_facts(), "nvidia-smi": first_line("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"),
            "kernel": platform.release(), "libc": " ".join(platform.libc_ver()), "python": platform.python_version(),
            "processor": text_of("/proc/cpuinfo", r"^model name\s*: (.*)$"), "cpus": len(os.sched_getaffinity(0)),
            "memory": text_of("/proc/meminfo", r"^MemTotal:\s*(.*)$"), "packages with libraries": packages_folders(),
            "nvcc": first_line("nvcc", "--version") if shutil.which("nvcc") else None}
