#!/usr/bin/env python3
"""A run's folder: what others have put there is named and stays, whatever is asked for; no link is followed, no pipe waited for; a job that was
killed anywhere is started again by one and the same command, and a run's own config.toml can be given again.
Usage: run_folder_test.py TRAIN [WORD...]   (WORD: only the cases whose name contains one)"""

import ctypes
import os
import pathlib
import shutil
import signal
import sys

import harness
import tiny_run
from resume_test import CANNOT_CREATE, CONFIG, LIMIT_S, UNUSABLE, Folder, after_lines, compare, expect, whole_run

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux
MARK, EVENTS = "zshard-run.txt", "events.out.tfevents.zshard"


def contents(folder):
    """Every path below with its kind and bytes: sizes alone would not show what was overwritten."""
    found = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        plain = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(folder))] = path.read_bytes() if plain else os.readlink(path) if path.is_symlink() else "other"
    return found


def foreign(train, whole):
    """What no run wrote is in the way by its name (73), with --overwrite, --resume latest and auto too, and stays."""
    problems = []
    for name in ("config.toml", "metrics.jsonl", "model.safetensors", "report.html", EVENTS, MARK, "checkpoints/best.pt", "checkpoints/hf/pytorch_model.bin"):
        with Folder(train) as folder:
            path = folder.path / "out" / name
            path.parent.mkdir(parents=True)
            path.write_text("precious\n")
            before = contents(folder.path)
            for arguments in ([], ["--overwrite"], ["--resume", "auto"]):
                problems += [f"{name} {arguments}: {p}" for p in expect(folder.start(*arguments), CANNOT_CREATE, "in the way", name.split("/")[0])]
                problems += [] if contents(folder.path) == before else [f"{name} {arguments}: files were changed"]
    with Folder(train) as folder:  # of an older program, say: no mark
        folder.start(checkpoint__every=4)
        (folder.path / "out" / MARK).unlink()
        before = contents(folder.path)
        for arguments, word in (([], "config.toml"), (["--overwrite"], "config.toml"), (["--resume", "latest"], MARK), (["--resume", "auto"], MARK)):
            problems += [f"no mark, {arguments}: {p}" for p in expect(folder.start(*arguments), CANNOT_CREATE, word)]
            problems += [] if contents(folder.path) == before else [f"no mark, {arguments}: files were changed"]
        # The advice can be followed.
        result = folder.start("--resume", "out/checkpoints/step-8", run__dir="new", train__steps=9)
        problems += [] if result.code == 0 else [f"no mark, a new run: {result}"]
    return problems


def overwritten(train, whole):
    """--overwrite replaces what the run wrote, keeps what others put beside it, and refuses by name what has taken its place."""
    with Folder(train) as folder:
        folder.start(checkpoint__every=2, checkpoint__keep=0)
        out = folder.path / "out"
        shutil.copytree(out / "checkpoints/step-2", out / "checkpoints/best")
        (out / "notes.txt").write_text("precious\n")
        (out / "model.safetensors.4242-0.tmp").write_text("left by a run that was killed\n")
        problems = compare(folder, folder.start("--overwrite", ranks=2, checkpoint__every=8), whole)
        problems += [] if folder.checkpoints() == ["best", "step-8"] else [f"checkpoints are {folder.checkpoints()}"]
        problems += [] if (out / "notes.txt").read_text() == "precious\n" else ["notes.txt is gone"]
        problems += ["model.safetensors.4242-0.tmp is left"] if (out / "model.safetensors.4242-0.tmp").exists() else []
        for name in ("config.toml", "model.safetensors", "metrics.jsonl", "report.html", EVENTS, "checkpoints/step-8/notes.txt"):
            kept = (out / name).read_bytes() if (out / name).exists() else None
            (out / name).write_text("precious\n")
            before = contents(out)
            problems += [f"{name}: {p}" for p in expect(folder.start("--overwrite"), CANNOT_CREATE, name)]
            problems += [] if contents(out) == before else [f"{name}: files were changed"]
            (out / name).unlink() if kept is None else (out / name).write_bytes(kept)
        shutil.rmtree(out / "checkpoints/step-8")
        shutil.move(out / "checkpoints/best", out / "checkpoints/step-8")
        problems += expect(folder.start("--overwrite"), CANNOT_CREATE, "step-8", "another step")
        return problems + ([] if (out / "checkpoints/step-8/manifest.json").exists() else ["the only checkpoint is gone"])


def kept(train, whole):
    """A default of checkpoint.keep removes nothing that was saved before; what is asked for is named and done."""
    with Folder(train) as folder:
        folder.start(checkpoint__every=1, checkpoint__keep=0)
        results = [folder.start("--resume", "latest", train__steps=steps, checkpoint__every=1) for steps in (9, 10)]
        problems = ["it names a change that is none"] if any("checkpoint.keep" in result.out for result in results) else []
        problems += [] if len(folder.checkpoints()) == 10 else [f"a default has removed some: {folder.checkpoints()}"]
        problems += [] if "keep = 0" in (folder.path / "out/config.toml").read_text() else ["config.toml has another keep"]
        result = folder.start("--resume", "latest", train__steps=11, checkpoint__every=1, checkpoint__keep=2)
        problems += [] if "checkpoint.keep 0 -> 2" in result.out else ["it does not name what removes"]
        return problems + ([] if folder.checkpoints() == ["step-10", "step-11"] else [f"checkpoints are {folder.checkpoints()}"])


def requeued(train, whole):
    """--resume auto is one command for every start of a job: before there is anything, before the first checkpoint, after it, and at the end."""
    with Folder(train) as folder:
        metrics, problems = folder.path / "out/metrics.jsonl", []
        kill = after_lines(metrics, 2, lambda process: os.killpg(process.pid, signal.SIGKILL))
        for ranks in (None, 2):
            shutil.rmtree(folder.path / "out", ignore_errors=True)
            for _ in range(2):
                folder.start("--resume", "auto", ranks=ranks, train__steps=10**6, on_start=kill)
            problems += expect(folder.start("--resume", "latest", ranks=ranks), UNUSABLE, "--resume auto")
            problems += expect(folder.start(ranks=ranks), CANNOT_CREATE, "--resume auto")
            (folder.path / "out/checkpoints/step-5.tmp").mkdir(parents=True)  # within the first save: the mark has its name
            with open(folder.path / "out" / MARK, "a") as mark:
                mark.write("checkpoints/step-5\n")
            problems += compare(folder, folder.start("--resume", "auto", ranks=ranks, checkpoint__every=4), whole)
            problems += compare(folder, folder.start("--resume", "auto", ranks=ranks, checkpoint__every=4), whole)
            problems += [] if folder.checkpoints() == ["step-4", "step-8"] else [f"checkpoints are {folder.checkpoints()}"]
        shutil.rmtree(folder.path / "out")
        folder.start()
        before = contents(folder.path)
        problems += expect(folder.start("--resume", "auto"), CANNOT_CREATE, "--overwrite")  # final weights without a checkpoint
        problems += expect(folder.start("--resume", "latest"), UNUSABLE, "--overwrite")
        problems += [] if contents(folder.path) == before else ["the finished run was changed"]
        numbered = [folder.start("--resume", "auto", run__dir="", checkpoint__every=4, train__steps=steps) for steps in (4, 8)]
        return problems + [f"numbered runs: {r}" for r in numbered if "writing to runs/tiny-run-1" not in r.out]


def linked(train, whole):
    """The checkpoints of another run stay: one that was copied into the run's folder, and all, where a link to them is in the place of the run's own from the start, or from one step to the next."""
    with Folder(train) as folder:
        for run in ("a", "b"):
            folder.start(run__dir=run, checkpoint__every=4)
        a, b = folder.path / "a/checkpoints", folder.path / "b/checkpoints"
        shutil.move(b, folder.path / "kept")
        b.symlink_to(a)
        before, problems = contents(folder.path), []
        for arguments in (["--resume", "latest"], ["--resume", "auto"], ["--resume", "b/checkpoints/step-4", "--overwrite"], ["--overwrite"]):
            problems += [f"{arguments}: {p}" for p in expect(folder.start(*arguments, run__dir="b", train__steps=9), CANNOT_CREATE, "b/checkpoints")]
            problems += [] if contents(folder.path) == before else [f"{arguments}: files were changed"]
        os.unlink(b)
        shutil.move(folder.path / "kept", b)
        shutil.rmtree(b / "step-4")
        shutil.copytree(a / "step-4", b / "step-4")  # a name that this run has used, too
        folder.start("--resume", "latest", run__dir="b", train__steps=10, checkpoint__every=1, checkpoint__keep=1)
        there = sorted(path.name for path in b.iterdir())
        problems += [] if there == ["step-10", "step-4"] else [f"another run's checkpoint among {there}"]

        def swap(_):  # at once, so that a save finds one or the other
            (folder.path / "kept").symlink_to(a)
            if ctypes.CDLL(None, use_errno=True).renameat2(AT_FDCWD, os.fsencode(folder.path / "kept"), AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE):
                raise OSError(ctypes.get_errno(), "renameat2")

        others = contents(a)
        on_start = after_lines(folder.path / "b/metrics.jsonl", 11, swap)
        result = folder.start("--resume", "latest", run__dir="b", train__steps=10**6, checkpoint__every=1, checkpoint__keep=1, on_start=on_start)
        problems += expect(result, CANNOT_CREATE, "b/checkpoints")
        return problems + ([] if contents(a) == others else ["another run's checkpoints were changed"])


def exported_bytes(path):
    return contents(path) if path.is_dir() else path.read_bytes()


def exported(train, whole):
    """A run knows what it has exported: it ends well however often it is started, and a folder of somebody else is refused, as what it reads is."""
    with Folder(train) as folder:
        problems = []
        for name in ("tuned", "tuned.gguf"):
            keys = {"run__dir": f"of-{name}", "run__export": name, "checkpoint__every": 4}
            model, weights = folder.path / name, folder.path / f"of-{name}/model.safetensors"
            first = folder.start(**keys)
            before = exported_bytes(model)
            problems += [f"{name}: {p}" for p in compare(folder, folder.start("--resume", "auto", **keys), whole, run=f"of-{name}")]
            if name == "tuned":
                (model / ".zshard-writing").write_text("")  # killed when the export had its name
                problems += compare(folder, folder.start("--resume", "auto", **keys), whole, run=f"of-{name}")
                problems += [] if exported_bytes(model) == before else ["the mark of a killed export is left in it"]
            weights.unlink()  # as a kill would leave it, behind the export
            problems += [f"{name}, killed: {p}" for p in compare(folder, folder.start("--resume", "auto", **keys), whole, run=f"of-{name}")]
            result = folder.start("--resume", "latest", **keys, train__steps=9)
            problems += [] if result.code == 0 else [f"{name}, more steps: {result}"]
            problems += [f"{name} was not replaced"] if exported_bytes(model) == before else []
            problems += [f"left beside it: {p.name}" for p in folder.path.glob("*.tmp")]
            (model / "notes.txt" if name == "tuned" else model).write_text("precious\n")
            before = contents(folder.path)
            for arguments in (["--resume", "auto"], ["--resume", "latest"]):
                problems += [f"{name}, changed: {p}" for p in expect(folder.start(*arguments, **keys, train__steps=9), CANNOT_CREATE, name)]
            problems += [] if contents(folder.path) == before else [f"{name}: what somebody changed was touched"]
            problems += [f"{name}: {first}"] if first.code != 0 else []
        config = folder.start(run__dir="run", run__export="run")
        problems += expect(config, CONFIG, "the place of the run itself")
        place = folder.path / "left.99999999-0.tmp"
        place.mkdir()
        (place / ".zshard-writing").write_text("")
        (place / "model.safetensors").write_text("half")
        result = folder.start("--overwrite", run__dir="run", run__export="left")
        return problems + ([] if result.code == 0 and not place.exists() else [f"what a killed export has left: {result}"])


def own_config(train, whole):
    """A run's config.toml can be given again from anywhere, and with --resume latest that run goes on, wherever it lies now."""
    with Folder(train) as folder:
        place, elsewhere = folder.path / "cfg", folder.path / "elsewhere"
        place.mkdir()
        elsewhere.mkdir()
        raw = os.fsdecode(b"caf\xe9 \xee\xbe\x80.txt")
        shutil.copy(folder.path / "corpus.txt", place / "texts.txt")
        shutil.copy(folder.path / "corpus.txt", place / raw)
        text = folder.config.read_text().split("[run]")[0].replace(str(folder.path / "corpus.txt"), "texts.txt")
        (place / "my.toml").write_text(text + "[run]\nsample_tokens = 0\n[checkpoint]\nevery = 4\n")
        fixed = tiny_run.options(train__deterministic=True)

        def start(config, *arguments, cwd=folder.path, **keys):
            return harness.run([train, config, *fixed, *tiny_run.options(**keys), *arguments], LIMIT_S, cwd=cwd)

        first = [start("cfg/my.toml", train__steps=8), start("cfg/my.toml", train__steps=4)]
        problems = [f"a first run: {r}" for r in first if r.code != 0]
        result = start(folder.path / "runs/tiny-run-1/config.toml", "--resume", "latest", cwd=elsewhere, train__steps=9)
        problems += [] if "runs/tiny-run-1/checkpoints/step-8" in result.out else [f"another run went on: {result}"]
        result = start("runs/tiny-run-1/config.toml", cwd=folder.path)
        problems += [] if "writing to runs/tiny-run-3" in result.out else [f"config.toml was not taken again: {result}"]
        shutil.move(folder.path / "runs/tiny-run-2", elsewhere / "moved")
        result = start("moved/config.toml", "--resume", "auto", cwd=elsewhere, train__steps=8)
        problems += [] if result.code == 0 and "moved/checkpoints/step-4" in result.out else [f"a moved run: {result}"]
        result = start("cfg/my.toml", data__train=place / raw, run__dir="raw", train__steps=8)
        problems += [] if result.code == 0 else [f"a name that is not UTF-8: {result}"]
        result = start(folder.path / "raw/config.toml", "--resume", "latest", cwd=elsewhere, train__steps=9)
        problems += [] if result.code == 0 and "raw/checkpoints/step-8" in result.out else [f"its config.toml again: {result}"]
        result = start("cfg/my.toml", run__dir="disk", train__steps=4, run__export="tuned", offload__moments='"disk:disk-of-it"')
        shutil.rmtree(folder.path / "tuned")
        result = start(folder.path / "disk/config.toml", "--resume", "latest", cwd=elsewhere, train__steps=5) if result.code == 0 else result
        problems += [] if result.code == 0 and (folder.path / "tuned").is_dir() else [f"its export lies elsewhere: {result}"]
        return problems + ["its disk is another one"] * (elsewhere / "disk-of-it").exists()


def links(train, whole):
    """F06: of a run's files no link is followed and no pipe waited for; nothing outside of the run is touched."""
    with Folder(train) as folder:
        folder.start(checkpoint__every=8)
        out, victim, problems = folder.path / "out", folder.path / "victim", []
        victim.write_text("precious\n" * 3)
        for name in ("metrics.jsonl", "model.safetensors"):
            for kind, make in (("a link", lambda path: path.symlink_to(victim)), ("a pipe", os.mkfifo), ("a folder", os.mkdir)):
                shutil.move(out / name, folder.path / "kept")
                make(out / name)
                for arguments in (["--resume", "latest"], ["--overwrite"]):
                    problems += [f"{name} is {kind}: {p}" for p in expect(folder.start(*arguments, train__steps=9), CANNOT_CREATE, name)]
                os.rmdir(out / name) if kind == "a folder" else os.unlink(out / name)
                shutil.move(folder.path / "kept", out / name)
        metrics = (out / "metrics.jsonl").read_bytes()
        (out / "metrics.jsonl").write_bytes(metrics + b"precious\n")
        problems += expect(folder.start("--resume", "latest", train__steps=9), CANNOT_CREATE, "metrics.jsonl")
        (out / "metrics.jsonl").write_bytes(metrics)
        for make, target in ((lambda: (out / "flight").symlink_to(folder.path / "records"), "records/rank-0.txt"),
                             (lambda: (out / "flight").mkdir() or (out / "flight/rank-0.txt").symlink_to(victim), "victim"),
                             (lambda: (out / "flight").mkdir() or (out / "flight/rank-0.txt").write_text("precious\n" * 3), "out/flight/rank-0.txt")):
            (folder.path / "records").mkdir(exist_ok=True)
            (folder.path / "records/rank-0.txt").write_text("precious\n" * 3)
            make()
            on_start = after_lines(out / "metrics.jsonl", 10, lambda p: [os.kill(c, signal.SIGKILL) for c in harness.ranks_of(p.pid)[-1:]])
            (out / "metrics.jsonl").write_bytes(metrics)
            result = folder.start("--resume", "latest", ranks=2, train__steps=10**6, train__lr="1e-6", on_start=on_start)
            # Hydra kills the others at once, before one can say so.
            problems += [] if harness.is_mpich() or "rank 1 has died" in result.err else [f"no rank has died: {result}"]
            problems += [] if (folder.path / target).read_text() == "precious\n" * 3 else [f"{target} was overwritten by a flight record"]
            os.unlink(out / "flight") if (out / "flight").is_symlink() else shutil.rmtree(out / "flight")
        problems += [] if victim.read_text() == "precious\n" * 3 else ["the victim was changed"]
        return problems + expect(folder.start(run__dir="/"), CANNOT_CREATE, "root")


def names(train, whole):
    """F02, F07, F11: a checkpoint under a name of its own is gone on from, one of another step is named, and what a killed run left is removed."""
    with Folder(train) as folder:
        folder.start(checkpoint__every=8)
        out = folder.path / "out"
        shutil.move(out / "checkpoints/step-8", out / "checkpoints/best")
        for name in ("model.safetensors.4242-0.tmp", "config.toml.4242-1.tmp"):
            (out / name).write_text("left\n")
        (out / "notes.4242-0.tmp").write_text("precious\n")
        result = folder.start("--resume", "out/checkpoints/best", train__steps=9, checkpoint__every=9)
        problems = [] if result.code == 0 and "going on after step 8" in result.out else [f"its own name: {result}"]
        left = sorted(p.name for p in out.glob("*.tmp"))
        problems += [] if left == ["notes.4242-0.tmp"] else [f"left are {left}"]
        shutil.rmtree(out / "checkpoints/step-9")
        shutil.move(out / "checkpoints/best", out / "checkpoints/step-9")
        before = contents(folder.path)
        for arguments in (["--resume", "latest"], ["--resume", "latest-valid"], ["--resume", "out/checkpoints/step-9"]):
            problems += expect(folder.start(*arguments, train__steps=12), UNUSABLE, "step 9", "step 8")
        problems += expect(harness.run([train, "--verify", "out"], LIMIT_S, cwd=folder.path), UNUSABLE, "step-9")
        return problems + ([] if contents(folder.path) == before else ["files were changed"])


def modes(train, whole):
    """F15: the modes of all that a run writes are as the umask says."""
    problems = []
    with Folder(train) as folder:
        for mask, modes_of in (("022", {(True, 0o755), (False, 0o644)}), ("077", {(True, 0o700), (False, 0o600)})):
            prefix = ["sh", "-c", f'umask {mask}; exec "$@"', "sh"]
            folder.start(prefix=prefix, run__dir=f"{mask}/run", run__export=f"{mask}/tuned", checkpoint__every=4)
            found = {(path.is_dir(), path.lstat().st_mode & 0o7777) for path in [folder.path / mask, *(folder.path / mask).rglob("*")]}
            problems += [] if found == modes_of else [f"umask {mask}: modes are {[(d, oct(m)) for d, m in sorted(found)]}"]
    return problems


def main():
    whole = whole_run(harness.begin())
    return harness.run_cases((foreign, overwritten, kept, requeued, linked, exported, own_config, links, names, modes), whole)


if __name__ == "__main__":
    sys.exit(main())
