"""Steps of tests/gpu/drill with tools of the machine: PyTorch, ncu, compute-sanitizer. Where there is none, a step is skipped."""

import glob
import os
import pathlib
import shutil
import sys
import time

import drill_machine

PEERS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers"
TOOLS_FOLDERS = ("/usr/local/cuda*/bin", "/usr/local/cuda*/compute-sanitizer", "/opt/nvidia/nsight-compute/*")
MOST_CASES = 20  # of a program under compute-sanitizer


def find_tool(name):
    """Its path, or None."""
    if shutil.which(name):
        return shutil.which(name)
    places = [os.path.join(folder, name) for pattern in TOOLS_FOLDERS for folder in sorted(glob.glob(pattern), reverse=True)]
    return next((place for place in places if os.access(place, os.X_OK)), None)


def start_peer(step, log, work):
    """With this machine's Python and its own libraries."""
    return drill_machine.Program([sys.executable, PEERS / step["script"], *step["args"]], log, dict(os.environ), work)


def sanitize(steps, step, ends, failed):
    """Each program's cases that have not passed before (failed: {program: names}), in one process."""
    tool = find_tool("compute-sanitizer")
    if not failed:
        return "passed", "everything has passed"
    if tool is None:
        return "skipped", "no compute-sanitizer here"
    bad = []
    for program, names in failed.items():
        listing, log = steps.work / f"sanitized-{program}.txt", steps.log_of(step, program)
        steps.write_names(listing, names[:MOST_CASES])
        run = drill_machine.Program([tool, "--tool", "memcheck", "--error-exitcode", "1", steps.root / "programs" / program, "-f", listing], log, steps.env,
                                    steps.work)
        drill_machine.finish([run], ends)
        bad += [f"{program}: {run.rc}"] if run.rc != 0 else []
    return ("FAILED", "; ".join(bad)[:100]) if bad else ("passed", f"no errors in {sum(map(len, failed.values()))} cases that had failed")


def count(steps, step, ends):
    tool, left, bad = find_tool("ncu"), dict(step["counted"]), []
    if tool is None:
        return "skipped", "no ncu here"
    while left:
        kernel, case = left.popitem()
        log = steps.log_of(step, kernel)
        sections = [word for name in ("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "LaunchStats", "WarpStateStats") for word in ("--section", name)]
        words = [tool, "--clock-control", "none", "--kernel-name", f"regex:^{kernel}$", "--launch-count", "1", *sections,
                 steps.root / "programs" / step["program"], *step["args"], "--filter", case]
        run = drill_machine.Program(words, log, steps.env, steps.work)
        now = time.monotonic()
        drill_machine.finish([run], min(ends, now + (ends - now) / (len(left) + 1)))
        if run.rc != 0 or kernel not in log.read_text(errors="replace").split("\n", 1)[1]:
            bad.append(f"{kernel}: {run.rc}")
    return ("FAILED", "; ".join(bad)[:100]) if bad else ("passed", f"{len(step['counted'])} kernels, in the logs")
