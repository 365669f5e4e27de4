#!/usr/bin/env python3
"""The CUDA back end compiles for several GPUs at once and for later ones, without a warning, and a kernel that spills registers fails the
build. Usage: cuda_archs_test.py ROOT NVCC (empty: there is none)"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train" / "program"))
import harness

ARCHS = "80,90+PTX"
EXPECTED = {("code", 80), ("code", 90), ("PTX", 90)}
FEW_REGISTERS = "-maxrregcount=32"  # fewer than the kernels' own
FATBIN_MAGIC, KINDS = 0xBA55ED50, {1: "PTX", 2: "code"}


def contents(image):
    """(kind, compute capability) of every part of a fat binary."""
    magic, _, header_bytes, bytes_after = struct.unpack_from("<IHHQ", image)
    if magic != FATBIN_MAGIC:
        raise ValueError(f"no fat binary: it begins with {magic:#x}")
    at, parts = header_bytes, set()
    while at < header_bytes + bytes_after:
        kind, _, part_header_bytes, part_bytes = struct.unpack_from("<HHIQ", image, at)
        parts.add((KINDS.get(kind, kind), struct.unpack_from("<I", image, at + 28)[0]))
        at += part_header_bytes + part_bytes
    return parts


def run(words, **env):
    return subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, **env}, timeout=900)


def targets(build):
    """Files that nvcc makes."""
    shown = json.loads(run(["meson", "introspect", "--targets", build]).stdout)
    made = [t for t in shown if t["type"] == "custom" and (t["name"] == "cuda_kernels" or t["name"].endswith("_abi_check"))]
    return [os.path.relpath(name, build) for target in made for name in target["filename"]]


def main():
    root, nvcc = sys.argv[1:]
    if not nvcc:
        print("skipped: there is no nvcc, or none that goes with this C++ compiler")
        return harness.SKIP
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="zshard-test-") as folder:
        build, path = pathlib.Path(folder) / "build", os.pathsep.join([os.path.dirname(nvcc), os.environ["PATH"]])
        done = run(["meson", "setup", build, root, "-Dcuda=enabled", f"-Dgpu_arch={ARCHS}"], PATH=path)
        report.case("a build for several GPUs is configured", [] if done.returncode == 0 else ["exit 0 expected"], done.stdout)
        if done.returncode != 0:
            return report.exit_code()
        files = targets(build)
        done = run(["ninja", "-C", build, *files], PATH=path)
        problems = [] if done.returncode == 0 and "warning" not in done.stdout else ["exit 0 and no warning expected"]
        problems += [] if len(files) >= 3 else [f"kernels and checks of NVIDIA's headers expected: {files}"]
        report.case("everything of CUDA compiles without a warning", problems, done.stdout)
        image = build / "kernels" / "cuda" / "kernels.fatbin"
        found = contents(image.read_bytes()) if image.is_file() else set()
        report.case("the kernels are there for each", [] if found == EXPECTED else [f"{sorted(found)}, expected {sorted(EXPECTED)}"])

        image.unlink(missing_ok=True)
        done = run(["ninja", "-C", build, os.path.relpath(image, build)], PATH=path, NVCC_APPEND_FLAGS=FEW_REGISTERS)
        refused = done.returncode != 0 and "error   : Registers are spilled" in done.stdout
        report.case("a kernel that spills fails the build", [] if refused else ["a failure that names the spills expected"], done.stdout)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
