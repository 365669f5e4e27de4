#!/usr/bin/env python3
"""The program on older processors, emulated by qemu: it reaches no instruction that they lack, chooses the kernels that they have, and ends with
the bits that those kernels give here.
Usage: emulated_cpus_test.py TRAIN"""

import pathlib
import re
import shutil
import sys
import tempfile

import harness
import tiny_run

QEMU = "qemu-x86_64"
LIMIT_S, USAGE, LACKS = 900, 64, "this processor lacks the instruction set"
# Processor as qemu calls it, its kernels, and the cap on oneDNN's choice that makes it take here what it takes there.
PROCESSORS = (("core2duo", "baseline", "SSE41"), ("Nehalem", "baseline", "SSE41"), ("Haswell", "avx2", "AVX2"))


def start(train, folder, processor="", **env):
    """On `processor`, else on this machine's. GOMP_SPINCOUNT: without it the program sets it and starts itself again, which qemu leaves to the machine's
    own processor."""
    config = tiny_run.write_files(folder, processor or "here")
    sets = tiny_run.options(train__steps=5, train__deterministic=True, run__sample_tokens=0)
    prefix = [QEMU, "-cpu", processor] if processor else []
    return harness.run([*prefix, train, config, *sets, "--overwrite"], LIMIT_S, cwd=folder, env={"GOMP_SPINCOUNT": "3000", **env})


def main():
    train = harness.begin()
    if shutil.which(QEMU) is None:
        print(f"skipped: {QEMU} is not installed (apt-get install qemu-user)")
        return harness.SKIP
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="emulated.") as folder:
        for processor, kernels, cap in PROCESSORS:
            here = start(train, folder, ZSHARD_ISA=kernels, ONEDNN_MAX_CPU_ISA=cap, DNNL_MAX_CPU_ISA=cap)
            if here.code != 0 and LACKS in here.err:
                print(f"not here: {kernels}")
                continue
            there = start(train, folder, processor)
            bits = [harness.weights_hash(result.out) for result in (here, there)]
            problems = [] if there.code == 0 and bits[0] and bits[0] == bits[1] else [f"exit 0 and weights {bits[0]} expected, not {bits[1]}"]
            problems += [] if re.search(rf", cpu {kernels}, ", there.out.partition("\n")[0]) else [f"cpu {kernels} expected"]
            report.case(f"{processor}: {kernels}, the bits of this machine's {kernels}", problems, there)
        refused = start(train, folder, "Nehalem", ZSHARD_ISA="avx2")
        report.case("Nehalem: kernels for AVX2 are refused", [] if refused.code == USAGE and LACKS in refused.last_error_line() else [f"exit {USAGE} expected"], refused)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
