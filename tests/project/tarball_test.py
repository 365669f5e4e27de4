#!/usr/bin/env python3
"""The archive of `./setup tarball`, unpacked in a root folder that has glibc beside it and nothing else: it trains there, on one rank and on three, to the
bits of this build; and its program with MPI trains under this machine's mpirun. Usage: tarball_test.py SOURCE_ROOT BUILD_ROOT"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from package_test import skip, write_job

GLIBC = ("ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1")
INSIDE = 'mount --rbind /proc "$1/proc" && mount --rbind /dev "$1/dev" && exec chroot "$1" /zshard/bin/zshard "${@:2}"'


def run(command, cwd=None, code=0):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_COMM", "PMIX_", "LD_"))}
    env.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "ZSHARD_SITE_CONFIG": ""})
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=cwd, env=env, timeout=200)
    if done.returncode != code:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def weights(text):
    found = re.search(r"^weights: ([0-9a-f]{16})$", text, re.M)
    return found[1] if found else sys.exit(f"no weights:\n{text}")


def prepare(folder, archive):
    """A root folder: glibc, the unpacked archive as /zshard, a job in /job."""
    run(["tar", "-C", folder, "-xJf", archive])
    next(folder.glob("zshard-*")).rename(folder / "zshard")
    for name in ("lib64", "proc", "dev", "tmp", "job"):
        (folder / name).mkdir()
    (folder / "lib").symlink_to("lib64")
    for name in GLIBC:
        place = next((place for place in map(pathlib.Path, ("/lib/x86_64-linux-gnu", "/lib64")) if (place / name).exists()), None)
        shutil.copy2((place / name).resolve(), folder / "lib64" / name) if place else skip(f"no {name} of glibc where Debian has it")
    write_job(folder / "job")


def main():
    source, build = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    if shutil.which("patchelf") is None:
        skip("needs apt-get install patchelf")
    namespace = ["unshare", *([] if os.geteuid() == 0 else ["-Ur"]), "-m"]
    if subprocess.run([*namespace, "true"], capture_output=True).returncode != 0:
        skip("this user may have no mount namespace")
    with tempfile.TemporaryDirectory(prefix="zshard-tarball.") as work:
        archive = run([sys.executable, "-B", source / "model/package/tarball.py", build, work]).strip()
        folder = pathlib.Path(work, "root")
        folder.mkdir()
        prepare(folder, archive)
        ours, job = folder / "zshard/bin", folder / "job"
        for ranks in (1, 3):
            keys = ["--overwrite", "--set", "train.global_batch=6", "--set", f"comm.ranks={ranks}", "--set"]
            alone = weights(run([*namespace, "bash", "-c", INSIDE, "bash", folder, "train", "/job/tiny.toml", *keys, "run.dir=/job/run"]))
            here = weights(run([build / "train", job / "tiny.toml", *keys, f"run.dir={job}/run"], cwd=job))
            if alone != here:
                sys.exit(f"{ranks} ranks: weights {alone} of the archive, {here} of the build")
        mpirun = ["mpirun", "-q", "--oversubscribe", "-np", "2"]
        if (ours / "zshard-openmpi").exists() and shutil.which("mpirun"):
            words = ["tiny.toml", "--overwrite", "--set", f"run.dir={job}/run"]
            theirs = weights(run([*mpirun, ours / "zshard-openmpi", *words], cwd=job))
            if theirs != weights(run([*mpirun, build / "train", *words], cwd=job)):
                sys.exit("the archive's program with MPI has other weights than the build's")
            text = run([*mpirun, ours / "zshard", *words], cwd=job, code=64)
            if "mpirun started 2 ranks, and this build has no MPI" not in text or "comm.ranks=2" not in text or len(text.splitlines()) != 1:
                sys.exit(f"the program without MPI under mpirun:\n{text}")
        needs = re.search(r"glibc ([0-9.]+) or later", (folder / "zshard/README").read_text())[1]
        size = pathlib.Path(archive).stat().st_size
    print(f"{size / 1e6:.1f} MB, glibc {needs} or later; trained on 1 and 3 ranks without a library of the machine but glibc's")


if __name__ == "__main__":
    main()
