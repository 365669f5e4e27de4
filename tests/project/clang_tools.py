"""What the tests of all sources share: the tools of clang 14, which is the version of Debian 12, and one check of many files at once."""

import json
import os
import pathlib
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

VERSION = 14
FOLDERS = ("runtime", "kernels", "comm", "model", "bench")  # of the product


def find(tool):
    """The path of `clang-format` or `clang-tidy` in this very version: others format differently and have other checks. None without it."""
    for name in (f"{tool}-{VERSION}", tool):
        path = shutil.which(name)
        if path and f"version {VERSION}." in subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30).stdout:
            return path
    return None


def run_over(batches, command, root):
    """Runs `command` over each list of names, as many at once as there are CPUs. Returns (names, output) of those that ended with an error."""
    def run(names):
        done = subprocess.run([*command, *names], cwd=root, capture_output=True, text=True, timeout=600)
        return (names, done.stdout + done.stderr) if done.returncode != 0 else None

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [wrong for wrong in pool.map(run, batches) if wrong]


def single_file_commands(root, folder):
    """The product's sources and the command that compiles each, of a build that compiles file by file (the usual one takes several at once)."""
    subprocess.run(["meson", "setup", folder, str(root), "-Dunity=off", "-Dcuda=disabled"], check=True, capture_output=True, timeout=300)
    entries = json.loads((pathlib.Path(folder) / "compile_commands.json").read_text())
    named = {os.path.relpath(os.path.join(e["directory"], e["file"]), root): e["command"] for e in entries}
    return {name: command for name, command in sorted(named.items()) if name.endswith(".cpp") and name.split("/")[0] in FOLDERS}
