#!/usr/bin/env python3
"""tests/gpu/bundle --prebuilt and tests/gpu/drill, from end to end, where only the GPU is made up: in a root folder with a loader, a C library and
Python, and nothing of a distribution besides, programs find an emulated driver and cuBLASLt where NVIDIA's are. What passes, what fails, what does not
end, and what comes behind that, is told apart, and comes back with its logs. Exit 77 where no such root can be made.
Usage: drill_test.py BUILD_DIR EMULATED_GPU"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

sys.dont_write_bytecode = True
import drill_plan  # noqa: E402, beside this file

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED, LIMIT_S = 77, 500
STDLIB = pathlib.Path(os.__file__).parent
# In a mount namespace of its own: ROOT NEW_ROOT STDLIB LIBRARIES COMMAND...
INSIDE = """set -e
tree=$1; new=$2; stdlib=$3; libraries=$4; shift 4
mount --bind "$new" "$new"
mount --bind "$stdlib" "$new$stdlib"
mount --bind "$tree" "$new/zshard"
mount --bind /dev "$new/dev"
mount -t proc proc "$new/proc"
mount -t tmpfs tmpfs "$new/dev/shm"
chroot=$(command -v chroot || echo /usr/sbin/chroot) env=$(command -v env)
exec "$env" -i PATH=/nowhere HOME=/ LD_LIBRARY_PATH="$libraries" "$chroot" "$new" "$@"
"""


def fail(message):
    sys.exit(f"drill_test: {message}")


def libraries_of(paths):
    """What they load, the loader too, as this machine names it."""
    shown = subprocess.run(["ldd", *map(str, paths)], capture_output=True, text=True).stdout
    return set(re.findall(r"(/\S+\.so\S*) \(0x", shown))


def copy_into(root, path):
    target = root / str(path).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(path, target)


def make_root(root, emulated_gpu):
    """A loader, a C library, Python; the GPU's driver and cuBLASLt, which are one file, with what it loads where only it looks."""
    python = pathlib.Path(sys.executable).resolve()
    for name in ("zshard", "dev", "proc", "tmp", "in", "out", str(STDLIB).lstrip("/")):
        (root / name).mkdir(parents=True, exist_ok=True)
    copy_into(root, python)
    for library in libraries_of([python, *STDLIB.glob("lib-dynload/*.so")]):
        copy_into(root, library)
    drivers, cuda, emulation = root / "usr/local/nvidia/lib64", root / "usr/local/cuda/lib64", root / "usr/local/nvidia/lib64/emulation"
    for folder in (drivers, cuda, emulation):
        folder.mkdir(parents=True)
    shutil.copy(emulated_gpu, drivers / "libcuda.so.1")
    (cuda / "libcublasLt.so.13").symlink_to("/usr/local/nvidia/lib64/libcuda.so.1")
    for library in libraries_of([emulated_gpu]):
        if not (root / library.lstrip("/")).exists():
            shutil.copy(library, emulation)
    return python


def in_root(root, *words, libraries=""):
    command = ["unshare", "-m", "sh", "-c", INSIDE, "sh", ROOT, root, STDLIB, libraries, *words]
    return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=LIMIT_S)


def check_outcomes(steps, said):
    outcomes = {step["name"]: step["outcome"] for step in steps}
    expected = {"a step that fails": "FAILED", "a step that does not end": "not finished", "PyTorch": "skipped"}
    wrong = [f"{name}: {outcome}, expected {expected.get(name, 'passed')}" for name, outcome in outcomes.items() if outcome != expected.get(name, "passed")]
    expected_steps = ["start", *(step["name"] for step in drill_plan.small()["parts"]["a"])]
    if wrong or list(outcomes) != expected_steps:
        fail(f"of {len(outcomes)} steps: {wrong}\n{said}")
    details = {step["name"]: step["detail"] for step in steps}
    for name, pattern in {"start": r"with the archive's C\+\+ library$", "kernels": r"^\d+ cases$", "losses, f32": r"^3 losses at most .* apart",
                          "losses of two ranks, staged": r"^3 losses at most .* apart", "a step that fails": r"no-such-option"}.items():
        if not re.search(pattern, details[name]):
            fail(f"{name}: {details[name]}\n{said}")


def check_files(out):
    if sorted(path.name for path in out.iterdir()) != ["drill.tar.gz", "results.json", "table.txt"]:
        fail(f"the results are {sorted(path.name for path in out.iterdir())}")
    with tarfile.open(out / "drill.tar.gz") as packed:
        names = packed.getnames()
    for wanted in ("drill/table.txt", "drill/results.json", "drill/logs/start.txt", "drill/logs/losses_of_two_ranks_staged.txt", "drill/logs/kernels_2.txt"):
        if wanted not in names:
            fail(f"{wanted} is not in the archive of the results: {names}")
    table = (out / "table.txt").read_text()
    for wanted in (r"^Emulated; nvidia-smi: ", r"^a step that does not end +not finished", r"layer_norm.* GB/s", r"^drill: 8 passed, 1 FAILED, 1 not finished, 1 skipped; "):
        if not re.search(wanted, table, re.MULTILINE):
            fail(f"the table has no line {wanted}:\n{table}")


def check_part_b(root, drill):
    """Where the machine has none of the tools; NCCL neither."""
    done = in_root(root, *drill, "--part", "b", "--limit-s", "300")
    results = json.loads((root / "out/results-b.json").read_text())
    outcomes = [step["outcome"] for step in results["steps"]]
    if done.returncode != 0 or outcomes != ["passed", "passed", "skipped", "skipped", "passed"] or "no NCCL here" not in done.stdout:
        fail(f"part b ended with {done.returncode}, {outcomes}:\n{done.stdout}")
    if len(list((root / "out").iterdir())) != 6:
        fail(f"the results of both parts are {sorted(path.name for path in (root / 'out').iterdir())}")


def check_without_library(root):
    """Where a driver shows a GPU and there is no cuBLASLt, device = "auto" is an error, and no run on the CPU."""
    with tarfile.open(root / "in/drill.tar.xz") as packed:
        packed.extractall(root / "in")
    library = next((root / "in/drill").glob("usr/lib/*-linux-gnu")).relative_to(root)
    (root / "usr/local/cuda/lib64/libcublasLt.so.13").unlink()
    run = ["/in/drill/programs/train", "/in/drill/data/tiny.toml", "--dry-run", "--set", "data.train=/in/drill/data/corpus.txt", "--set", "device=auto"]
    done = in_root(root, *run, libraries=f"/{library}:/in/drill/compiler")
    wanted = r'^train: error: there is a GPU, but it cannot be used: no cuBLASLt here \(.*\) \(device = "auto"\): name the folder .* in cuda\.libraries, '
    if done.returncode != 78 or not re.search(wanted, done.stdout):
        fail(f"without cuBLASLt train ended with {done.returncode}: {done.stdout}")


def main():
    build, emulated_gpu = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    with tempfile.TemporaryDirectory(prefix="drill_test.") as folder:
        here = pathlib.Path(folder)
        if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True).returncode != 0:
            print("skipped: no root, or no mount namespaces")
            sys.exit(SKIPPED)
        packed = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("bundle"), "--prebuilt", "--plan", "small", "--build", build, here / "made"],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
        print(packed.stdout, end="")
        if packed.returncode != 0:
            fail(f"the archive was not made: {packed.returncode}")
        root = here / "root"
        python = make_root(root, emulated_gpu)
        shutil.copy(here / "made" / "drill.tar.xz", root / "in")
        drill = [python, "/zshard/tests/gpu/drill", "--out", "/out", "--prebuilt", "/in/drill.tar.xz"]
        done = in_root(root, *drill, "--limit-s", "400")
        if done.returncode != 1:
            fail(f"the drill ended with {done.returncode}:\n{done.stdout}")
        check_outcomes(json.loads((root / "out/results.json").read_text())["steps"], done.stdout)
        check_files(root / "out")
        check_part_b(root, drill)
        check_without_library(root)
        (root / "usr/local/nvidia/lib64/libcuda.so.1").unlink()
        done = in_root(root, *drill)
        if done.returncode != SKIPPED or "no GPU here: " not in done.stdout:
            fail(f"without a driver it ended with {done.returncode}:\n{done.stdout}")
        (root / "in/drill.tar.xz").write_bytes(b"no archive")
        done = in_root(root, *drill)
        if done.returncode != 2 or "make it with tests/gpu/bundle --prebuilt" not in done.stdout:
            fail(f"with a broken archive it ended with {done.returncode}:\n{done.stdout}")


if __name__ == "__main__":
    main()
