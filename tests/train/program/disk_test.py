#!/usr/bin/env python3
"""Masters and the optimizer's state on a disk: the same run, in a fraction of the memory; and what becomes of a disk that cannot be used, or fails.
Usage: disk_test.py TRAIN [WORD...]   (WORD: only the cases whose name contains one)"""

import contextlib
import os
import pathlib
import re
import sys
import tempfile

import harness
import tiny_run
from resume_test import after_lines

LIMIT_S = 120
OUT_OF_MEMORY, CANNOT_CREATE, IO, CONFIG = 71, 73, 74, 78
BF16 = {"precision__param": "bf16", "run__sample_tokens": 0}


class Folder:
    def __init__(self, name):
        self.path = pathlib.Path(name)
        self.config = tiny_run.write_files(self.path)
        self.state = self.path / "state"
        self.disk = {"offload__weights": f"disk:{self.state}", "offload__moments": f"disk:{self.state}"}

    def run(self, *arguments, on_start=None, **keys):
        command = [TRAIN, self.config, *arguments, *tiny_run.options(**{**BF16, **keys})]
        return harness.run(command, LIMIT_S, cwd=self.path, on_start=on_start)


def planned(result):
    """What a dry run says of a rank's device, of the host's memory, and of its file."""
    taken = [int(text) for text in re.findall(r"from the system +(\d+)  ", result.out)]
    file = re.search(r"^  state +(\d+)  ", result.out, re.M)
    return taken[0], taken[1] if len(taken) > 1 else 0, int(file[1]) if file else 0


def is_as(result, code, *words):
    line = result.last_error_line()
    problems = [] if result.code == code else [f"exit code {result.code}, not {code}: {result.err}"]
    return problems + [f"the last line does not say {word!r}: {line}" for word in words if word not in line]


def run_alike(report):
    """The same bits on 1 and 3 ranks, nothing left in the folder, and another run goes on from a checkpoint elsewhere."""
    for ranks in (1, 3):
        with tempfile.TemporaryDirectory(prefix="disk.") as name:
            folder = Folder(name)
            keys = {"comm__ranks": ranks, "train__deterministic": True, "checkpoint__every": 2, "checkpoint__background": ranks > 1}
            usual = folder.run("--overwrite", **keys)
            kept = folder.run("--overwrite", "--verify-order", **keys, **folder.disk)
            problems = [f"exit code {r.code}: {r.err}" for r in (usual, kept) if r.code != 0]
            problems += [] if harness.weights_hash(usual.out) == harness.weights_hash(kept.out) else ["the weights differ"]
            problems += [] if folder.state.is_dir() and not list(folder.state.iterdir()) else ["the folder is not there, or not empty"]
            dry = folder.run("--dry-run", **{**keys, "checkpoint__background": False}, **folder.disk)
            device, host, file = planned(dry)
            problems += [] if file > 0 and 0 < host < file else [f"planned: device {device}, host {host}, file {file}"]
            problems += [] if re.search(r"^memory: .* on the disk, .* may be used \(free at ", dry.out, re.M) else ["the dry run has no line of the disk"]
            on = folder.run("--overwrite", "--resume", "out/checkpoints/step-2", **{**keys, "offload__weights": "device", "offload__moments": "host"})
            problems += [] if on.code == 0 and harness.weights_hash(on.out) == harness.weights_hash(usual.out) else [f"resumed elsewhere: {on}"]
            report.case(f"what a disk keeps, {ranks} ranks", problems, kept)


def run_imported(report):
    """Weights of a folder go to where they are kept, and others than the folder's come out of training."""
    with tempfile.TemporaryDirectory(prefix="disk.") as name:
        folder = Folder(name)
        exported = folder.run("--overwrite", run__export="given")
        tokens = folder.path / "tokens.bin"
        tiny_run.write_uint16_tokens(tokens, [(i * 7 + i // 9) % 96 for i in range(3000)])
        folder.config = tiny_run.write_folder_config(folder.path, folder.path / "given", tokens, 1e-3)
        keys = {"train__sequence": 16, "comm__ranks": 2, "train__deterministic": True}
        usual, kept = folder.run("--overwrite", **keys), folder.run("--overwrite", **keys, **folder.disk)
        problems = [f"{r}" for r in (exported, usual, kept) if r.code != 0]
        problems += [] if problems or harness.weights_hash(usual.out) == harness.weights_hash(kept.out) else ["the weights differ"]
        report.case("weights that are given", problems, kept)


def run_small(report):
    """A model of which a fifth fits the device, and a tenth of the rest the host's memory, trains."""
    with tempfile.TemporaryDirectory(prefix="disk.") as name:
        folder = Folder(name)
        sizes = {"model__layers": 40, "model__width": 64, "train__global_batch": 2, "train__steps": 2, "train__recompute": "block", "train__deterministic": True}
        whole = folder.run("--dry-run", **sizes)
        on_host = {role: "host" for role in ("offload__weights", "offload__gradients", "offload__moments")}
        device = planned(whole)[0]
        limits = {"offload__device_mib": device // 5 >> 20}
        host = planned(folder.run("--dry-run", **sizes, **on_host))[1]
        usual, fifth = folder.run("--overwrite", **sizes), folder.run("--overwrite", **sizes, **limits, **on_host)
        problems = [] if limits["offload__device_mib"] > 0 and harness.weights_hash(usual.out) == harness.weights_hash(fifth.out) else [f"a fifth of {device}: {fifth}"]
        problems += is_as(folder.run("--overwrite", **sizes, **limits), OUT_OF_MEMORY, "of the device's memory")
        del on_host["offload__gradients"]
        limits = {"offload__host_mib": planned(folder.run("--dry-run", **sizes, **on_host))[1] // 10 >> 20}
        problems += is_as(folder.run("--overwrite", **sizes, **limits, **on_host), OUT_OF_MEMORY, "of the host's memory")
        tenth = folder.run("--overwrite", **sizes, **limits, **folder.disk)
        problems += [] if limits["offload__host_mib"] > 0 and harness.weights_hash(usual.out) == harness.weights_hash(tenth.out) else [f"a tenth of {host}: {tenth}"]
        report.case("a fifth of the device, a tenth of the host", problems, tenth)


def run_refused(report):
    """A folder that is none, or memory, before anything is made."""
    with tempfile.TemporaryDirectory(prefix="disk.") as name:
        folder = Folder(name)
        before, problems = harness.tree(folder.path), []
        for place, code, words in ((folder.path / "not/there", CANNOT_CREATE, ("the folder for state that the disk keeps cannot be made", "not/there")),
                                   (folder.config, CANNOT_CREATE, ("cannot be written to",)),
                                   ("/dev/shm/zshard-state", CONFIG, ("the folder is in memory, not on a disk (/dev/shm/zshard-state)",))):
            problems += is_as(folder.run("--overwrite", offload__moments=f"disk:{place}"), code, *words)
        for value, words in (("disk:", ("disk:FOLDER",)), ("tape", ("disk:FOLDER",))):
            problems += is_as(folder.run("--overwrite", offload__moments=value), CONFIG, *words)
        problems += [] if harness.tree(folder.path) == before else ["a refused folder changed files"]
        (folder.path / "out").write_text("mine")
        before = harness.tree(folder.path)
        problems += is_as(folder.run("--overwrite", **folder.disk), CANNOT_CREATE, "out")
        problems += is_as(folder.run("--overwrite", offload__gradients=f"disk:{folder.state}"), CONFIG, "offload.gradients")
        problems += [] if harness.tree(folder.path) == before else ["a refused run changed files"]
        report.case("a disk that is refused", problems)


def run_failing(report):
    """A file that becomes shorter while the run goes on: one line, and the last checkpoint goes on to the same weights."""
    def shorten(process):
        for link in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # others come and go
                if "/state/.zshard-state-" in os.readlink(link):
                    with open(link, "r+b") as file:
                        file.truncate(4096)

    for ranks in (1, 2):
        with tempfile.TemporaryDirectory(prefix="disk.") as name:
            folder = Folder(name)
            keys = {"comm__ranks": ranks, "train__deterministic": True, "checkpoint__every": 1, "train__steps": 60, **folder.disk}
            usual = folder.run(run__dir="usual", **keys)
            failed = folder.run("--overwrite", on_start=after_lines(folder.path / "out/metrics.jsonl", 3, shorten), **keys)
            problems = is_as(failed, IO, "reading the state that the disk keeps failed at byte", str(folder.state), "go on from the last checkpoint")
            noticed = ("has become shorter", "is not what was written")  # the latter where a write behind the cut made it long again
            problems += [] if any(words in failed.err for words in noticed) else [f"the line says none of {noticed}"]
            on = folder.run("--resume", "latest", **keys)
            problems += [] if on.code == 0 and harness.weights_hash(on.out) == harness.weights_hash(usual.out) else [f"resumed: {on}"]
            report.case(f"a disk that fails, {ranks} ranks", problems, failed)


def main():
    global TRAIN
    TRAIN = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    report = harness.Report()
    for case in (run_alike, run_imported, run_small, run_refused, run_failing):
        if len(sys.argv) == 2 or any(word in case.__name__ for word in sys.argv[2:]):
            case(report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
