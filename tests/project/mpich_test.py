#!/usr/bin/env python3
"""Builds zshard for MPICH in build-mpich/, and runs there the tests of what depends on an MPI and its launcher. mpich_test.py ROOT"""

import pathlib
import subprocess
import sys

SKIP = 77
TARGETS = ("train", "tests/comm/comm_mpi_test", "tests/comm/comm_mpi_order_test", "tests/comm/comm_mpi_polls_test")
PROGRAM_TESTS = ("equality_test", "stop_test", "main_job_test", "train_cli_test", "agreement_test", "resume_test", "run_folder_test", "slurm_test")


def run(*command, **options):
    print("$", *command, flush=True)
    return subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, check=True, **options)


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    build = root / "build-mpich"
    if subprocess.run(["pkg-config", "--exists", "mpich"], check=False).returncode != 0:
        print("skipped: needs MPICH (Debian: mpich libmpich-dev)")
        return SKIP
    if not (build / "build.ninja").exists():
        run("meson", "setup", build, root, "-Dmpi=mpich", "-Dcuda=disabled", "-Dunity=on", "-Dunity_size=16")
    run("ninja", "-C", build, *TARGETS)
    listed = run("meson", "test", "-C", build, "--list", "--no-rebuild", "--suite", "mpi", stdout=subprocess.PIPE, text=True).stdout
    comm = [line.rpartition(" / ")[2] for line in listed.splitlines() if " / comm_" in line and "staged" not in line]
    assert len(comm) > 40, f"only {len(comm)} tests of communicators are listed"
    run("meson", "test", "-C", build, "--no-rebuild", "--num-processes", "2", *comm, *PROGRAM_TESTS)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"mpich_test: {error}")
