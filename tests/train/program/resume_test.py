#!/usr/bin/env python3
"""A run that ends early, however it ends, goes on from its last checkpoint as if it had not: the same metrics, line by line, and the same
weights, to the bit. A checkpoint that is not as it was written is refused. IDs such as P1 name the fault, see docs/checkpoints.md.
Usage: resume_test.py TRAIN [WORD...]   (WORD: only the cases whose name contains one)"""

import fcntl
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

import harness
import tiny_run

LIMIT_S, STEPS = 90, 8
DATASET, UNUSABLE, CANNOT_CREATE, IO, STOPPED, CONFIG = 65, 68, 73, 74, 75, 78
SAME_EVERYWHERE = ("step", "loss", "grad_norm", "lr", "tokens")
FIXED = tiny_run.options(train__deterministic=True, train__steps=STEPS, run__sample_tokens=0)


class Folder:
    """A temporary folder with a configuration, in which runs are started."""

    def __init__(self, train):
        self.train, self.place = train, tempfile.TemporaryDirectory(prefix="resume.")
        self.path = pathlib.Path(self.place.name)
        self.config = tiny_run.write_files(self.path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.place.cleanup()

    def start(self, *arguments, ranks=None, on_start=None, prefix=(), fault="", **keys):
        command = [*prefix, self.train, self.config, *FIXED, *tiny_run.options(**keys), *arguments]
        env = {"TRAIN_FAULT": fault} if fault else None
        return harness.run(harness.launch(ranks, command), LIMIT_S, cwd=self.path, env=env, on_start=on_start)

    def checkpoints(self, run="out"):
        return sorted(p.name for p in (self.path / run / "checkpoints").glob("*"))


def numbers(run_dir):
    return [{key: line[key] for key in SAME_EVERYWHERE} for line in harness.read_metrics(run_dir)]


def whole_run(train):
    with Folder(train) as folder:
        result = folder.start()
        return harness.weights_hash(result.out), numbers(folder.path / "out")


def compare(folder, result, whole, run="out"):
    """Problems of a run that should have come to the end of the whole one."""
    problems = [] if result.code == 0 else [f"exit code {result.code}"]
    if problems:
        return problems
    problems += [] if harness.weights_hash(result.out) == whole[0] else ["other weights than the run that was not interrupted"]
    problems += [] if numbers(folder.path / run) == whole[1] else ["metrics.jsonl differs from the run that was not interrupted"]
    return problems + ([f"{len(result.orphans)} processes were left running"] if result.orphans else [])


def expect(result, code, *words):
    problems = [] if result.code == code else [f"exit code {result.code}, expected {code}"]
    last = result.last_error_line()
    return problems + [f"the last line does not say {word!r}: {last!r}" for word in words if word not in last]


def after_lines(metrics, count, act):
    """A function for `on_start`: acts when metrics.jsonl has that many lines."""
    def on_start(process):
        deadline = time.monotonic() + LIMIT_S / 2
        while time.monotonic() < deadline and process.poll() is None:
            if metrics.exists() and metrics.read_text().count("\n") >= count:
                break
            time.sleep(0.002)
        act(process)
    return on_start


def other_ranks(train, whole):
    """I2 through the program: saved by one number of ranks, gone on with by another, over both transports."""
    with Folder(train) as folder:
        problems = compare(folder, folder.start(ranks=3, checkpoint__every=3, checkpoint__keep=0), whole)
        problems += [] if folder.checkpoints() == ["step-3", "step-6", "step-8"] else [f"checkpoints are {folder.checkpoints()}"]
        for ranks, keys in ((None, {}), (2, {}), (None, {"comm__ranks": 4}), (8, {})):
            result = folder.start("--resume", "out/checkpoints/step-3", "--overwrite", ranks=ranks, **keys)
            problems += [f"{ranks} ranks, {keys}: {p}" for p in compare(folder, result, whole)]
            problems += [] if folder.checkpoints() == ["step-3"] else [f"later checkpoints are still there: {folder.checkpoints()}"]
        return problems


def documents(train, _):
    """Packed documents of two sources, with prompts and weights: the same run by any ranks, and from any checkpoint by others."""
    with Folder(train) as folder:
        lines = tiny_run.corpus_text().replace(".\n", " ").split(" the ")
        for name, some in (("a.jsonl", lines[:60]), ("b.jsonl", lines[60:])):
            objects = [{"q": text[: i % 4], "a": text[i % 4: 15] or "."} for i, text in enumerate(some)]
            (folder.path / name).write_text("".join(json.dumps(o) + "\n" for o in objects))
        (folder.path / "v.jsonl").write_text('{"q": "th", "a": "e sea"}\n{"q": "", "a": "the river"}\n')
        keys = {"data__format": "jsonl", "data__field": "a", "data__prompt_field": "q", "data__train": '["a.jsonl", "b.jsonl"]', "data__weights": "[3, 1]",
                "data__validation": "v.jsonl", "run__validate_every": 3, "train__micro_batch": 2, "train__lr": "1e-2"}
        result = folder.start(checkpoint__every=3, checkpoint__keep=0, **keys)
        if result.code != 0:
            return [f"exit code {result.code}\n{result}"]
        whole = harness.weights_hash(result.out), numbers(folder.path / "out")
        values = [m.get("val_loss") for m in harness.read_metrics(folder.path / "out")]
        problems = [] if whole[1][-1]["loss"] < whole[1][0]["loss"] - 0.2 else [f"nothing was learnt: {whole[1]}"]
        problems += [] if values[2] is not None and values[2] > 0 else [f"validation losses are {values}"]
        for ranks, step in ((3, 3), (4, 3), (2, None)):
            arguments = ["--overwrite"] if step is None else ["--overwrite", "--resume", f"out/checkpoints/step-{step}"]
            found = compare(folder, folder.start(*arguments, ranks=ranks, **keys), whole)
            problems += [f"{ranks} ranks from {step}: {p}" for p in found]
        return problems


def stopped(train, whole):
    """P7, P8: asked to stop, a run saves and says how to go on; the step it was in is not lost."""
    problems = []
    for name, ranks, send in (("SIGTERM", None, signal.SIGTERM), ("Ctrl-C", None, signal.SIGINT), ("SIGUSR1", 2, signal.SIGUSR1)):
        with Folder(train) as folder:
            metrics = folder.path / "out" / "metrics.jsonl"
            result = folder.start(ranks=ranks, on_start=after_lines(metrics, 2, lambda p: p.send_signal(send)), fault="step:delay=250", train__micro_batch=1)
            lines = len(harness.read_metrics(folder.path / "out"))
            found = expect(result, STOPPED, "--resume latest")
            found += [] if folder.checkpoints() == [f"step-{lines}"] else [f"{lines} steps, but {folder.checkpoints()}"]
            found = found or compare(folder, folder.start("--resume", "latest"), whole)
            problems += [f"{name}: {p}" for p in found]
    return problems


def killed(train, whole):
    """P1, P2, P3: killed at random moments, most of them within a save, until it comes to its end."""
    rng, problems, kills = random.Random(5), [], 0
    for ranks, background in ((None, False), (2, False), (None, True), (2, True)):
        with Folder(train) as folder:
            metrics = folder.path / "out" / "metrics.jsonl"
            for attempt in range(40):
                done = len(metrics.read_text().splitlines()) if metrics.exists() else 0

                def kill(process):
                    time.sleep(rng.uniform(0, 0.01))
                    if attempt < 6 and process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)

                is_any_whole = any(not name.endswith(".tmp") for name in folder.checkpoints())
                arguments = ["--resume", "latest"] if is_any_whole else ["--overwrite"]
                result = folder.start(*arguments, ranks=ranks, checkpoint__every=1, checkpoint__keep=2, checkpoint__background=background,
                                      on_start=after_lines(metrics, done + 1, kill))
                if result.code == 0:
                    break
                kills += 1
                if result.code != -signal.SIGKILL:
                    return problems + [f"{ranks} ranks, start {attempt}: exit code {result.code}\n{result}"]
            problems += compare(folder, result, whole)
            problems += [] if folder.checkpoints() == ["step-7", "step-8"] else [f"checkpoints at the end: {folder.checkpoints()}"]
            # Killed within the last save, after it had committed: nothing is left to train or to save.
            for name in ("step-5", "step-6.del", "step-8.tmp"):
                shutil.copytree(folder.path / "out" / "checkpoints" / "step-7", folder.path / "out" / "checkpoints" / name)
            folder.start("--resume", "latest", ranks=ranks, checkpoint__every=1, checkpoint__keep=2)
            problems += [] if folder.checkpoints() == ["step-7", "step-8"] else [f"left by the last save: {folder.checkpoints()}"]
    return problems + ([] if kills >= 3 else [f"only {kills} kills took place"])


def in_background(train, whole):
    """Saves that a thread writes: the same checkpoints at the end, by steps and by time, and the run goes on from a stop."""
    with Folder(train) as folder:
        keys = {"checkpoint__background": True, "checkpoint__keep": 0}
        problems = []
        for ranks in (None, 3):
            result = folder.start("--overwrite", ranks=ranks, checkpoint__every=3, **keys)
            found = compare(folder, result, whole)
            found += [] if folder.checkpoints() == ["step-3", "step-6", "step-8"] else [f"checkpoints are {folder.checkpoints()}"]
            good = harness.run([train, "--verify", "out"], LIMIT_S, cwd=folder.path)
            found += [] if good.code == 0 else [f"--verify: exit code {good.code}"]
            found += compare(folder, folder.start("--resume", "out/checkpoints/step-3", "--overwrite", checkpoint__every=1), whole)
            problems += [f"{ranks} ranks: {p}" for p in found]
        result = folder.start("--overwrite", checkpoint__every_minutes="1e-9", **keys)
        problems += compare(folder, result, whole)
        problems += [] if folder.checkpoints() == [f"step-{n}" for n in range(1, STEPS + 1)] else [f"by time: {folder.checkpoints()}"]
        return problems


def disk_full(train, whole):
    """C1: on a disk of 1 MiB the run ends with 74 and keeps what it had saved."""
    with Folder(train) as folder:
        place = folder.path / "disk"
        place.mkdir()
        script = 'mount -t tmpfs -o size=1m tmpfs "$0" || exit 77; "$@"; code=$?; ls "$0/out/checkpoints"; exit $code'
        prefix = ["unshare", "-Urm" if os.geteuid() else "-m", "sh", "-c", script, place]
        result = folder.start(prefix=prefix, run__dir=place / "out", checkpoint__every=1, checkpoint__keep=0)
        if result.code in (1, harness.SKIP):
            return [] if shutil.which("unshare") else ["unshare is missing"]
        listed = result.out.splitlines()[-2:]
        return expect(result, IO, "No space left", "--resume latest") + ([] if "step-1" in listed else [f"step-1 is gone: {listed}"]) + (
            ["a half checkpoint is left"] if any(line.endswith(".tmp") for line in listed) else [])


def verified(train, whole):
    """C4: --verify reads every byte: it says which checkpoints are good, and which are not."""
    with Folder(train) as folder:
        folder.start(checkpoint__every=3, checkpoint__keep=0, comm__ranks=2)
        good = harness.run([train, "--verify", "out"], LIMIT_S, cwd=folder.path)
        problems = [] if good.code == 0 and good.out.count("2 ranks") == 3 else [f"exit code {good.code}: {good.out}"]
        manifest = folder.path / "out/checkpoints/step-6/manifest.json"
        manifest.write_text(manifest.read_text().replace('"step":6', '"step":7'))
        bad = harness.run([train, "--verify", "out"], LIMIT_S, cwd=folder.path)
        problems += expect(bad, UNUSABLE, "step-6/manifest.json") + ([] if bad.out.count("good") == 2 else ["the other two are good"])
        problems += expect(harness.run([train, "--verify", "out/checkpoints/step-6"], LIMIT_S, cwd=folder.path), UNUSABLE, "step-6")
        one = harness.run([train, "--verify", "out/checkpoints/step-3"], LIMIT_S, cwd=folder.path)
        problems += [] if one.code == 0 else [f"exit code {one.code} for step-3"]
        return problems + expect(harness.run([train, "--verify", "nowhere"], LIMIT_S, cwd=folder.path), UNUSABLE, "nowhere")


def damaged(train, whole):
    """C3, C4: a damaged checkpoint is refused; passing over it must be asked for."""
    with Folder(train) as folder:
        folder.start(checkpoint__every=3, checkpoint__keep=0)
        data = folder.path / "out/checkpoints/step-8/rank-0.bin"
        bytes_ = bytearray(data.read_bytes())
        bytes_[len(bytes_) // 2] ^= 16
        data.write_bytes(bytes_)
        before = harness.tree(folder.path)
        problems = expect(folder.start("--resume", "latest", ranks=2), UNUSABLE, "damaged", "step-8/rank-0.bin", "latest-valid")
        problems += [] if harness.tree(folder.path) == before else ["the refused start changed files"]
        result = folder.start("--resume", "latest-valid", ranks=2)
        problems += compare(folder, result, whole)
        problems += [] if "step 8 is damaged" in result.err else ["it does not say that step 8 is damaged"]
        return problems + ([] if "step-8.damaged" in folder.checkpoints() else [f"it was not set aside: {folder.checkpoints()}"])


def refused(train, whole):
    """C5, C8, P12: what cannot be gone on from, or not like this, changes nothing."""
    with Folder(train) as folder:
        folder.start(checkpoint__every=4)
        before = harness.tree(folder.path)
        cases = [
            (["--resume", "latest"], {"run__dir": "nowhere"}, UNUSABLE, ["no checkpoint"]),
            (["--resume", "out/checkpoints/step-5"], {}, UNUSABLE, ["step-5"]),
            (["--resume", "tiny.toml"], {}, UNUSABLE, ["tiny.toml"]),
            (["--resume", "latest"], {"train__seed": 1, "train__sequence": 8}, CONFIG, ["train.seed 1337 -> 1", "train.sequence 16 -> 8"]),
            (["--resume", "latest"], {"model__layers": 3}, CONFIG, ["model.layers 2 -> 3"]),
            (["--resume", "latest"], {"data__train": "short.txt"}, CONFIG, ["data.train_tokens 5400 -> 2700"]),
            (["--resume", "latest"], {"train__steps": 5}, CONFIG, ["train.steps 5"]),
            (["--resume", "out/checkpoints/step-4"], {}, CANNOT_CREATE, ["later checkpoints"]),
            (["--resume", "latest"], {"train__steps": STEPS + 4, "comm__transport": "null"}, CONFIG, ["transport null", "no results"]),
            (["--resume", "latest"], {"train__steps": STEPS + 4, "comm__omit": "reductions"}, CONFIG, ["comm.omit", "no results"]),
            ([], {}, CANNOT_CREATE, ["--resume latest"]),
        ]
        (folder.path / "short.txt").write_text(tiny_run.corpus_text(3000))
        before = harness.tree(folder.path)
        problems = []
        for ranks in (None, 2):
            for arguments, keys, code, words in cases:
                result = folder.start(*arguments, ranks=ranks, **keys)
                problems += [f"{arguments} {keys}: {p}" for p in expect(result, code, *words)]
                problems += [] if harness.tree(folder.path) == before else [f"{arguments} {keys}: files were changed"]
        with open(folder.path / "out/metrics.jsonl", "rb+") as other:
            fcntl.lockf(other, fcntl.LOCK_EX)
            problems += expect(folder.start("--resume", "latest"), CANNOT_CREATE, "another run")
            problems += expect(folder.start("--overwrite"), CANNOT_CREATE, "another run")
        return problems


def forked(train, whole):
    """A checkpoint of one run may begin another: allowed changes are named in one line, the first run stays as it is."""
    with Folder(train) as folder:
        folder.start(checkpoint__every=4)
        before = harness.tree(folder.path / "out")
        result = folder.start("--resume", "out/checkpoints/step-4", run__dir="fork", train__lr="2e-3", checkpoint__every=2)
        problems = [] if result.code == 0 else [f"exit code {result.code}"]
        problems += [] if "changed: train.lr 0.001 -> 0.002" in result.out else ["it does not name the change"]
        problems += [] if [line["step"] for line in harness.read_metrics(folder.path / "fork")] == [5, 6, 7, 8] else ["the fork's steps"]
        problems += [] if harness.tree(folder.path / "out") == before else ["the first run was changed"]
        # Numbered runs: the last that has a checkpoint goes on.
        for _ in range(2):
            folder.start(run__dir="", checkpoint__every=4)
        result = folder.start("--resume", "latest", run__dir="")
        return problems + ([] if "writing to runs/tiny-run-2" in result.out else ["latest is not that of the last numbered run"])


def other_data(train, whole):
    """C8: data may move, and is compared by what it holds: other data of the same length is named."""
    with Folder(train) as folder:
        folder.start(checkpoint__every=4)
        corpus = folder.path / "corpus.txt"
        (folder.path / "moved").mkdir()
        shutil.copy(corpus, folder.path / "moved" / "corpus.txt")
        shutil.copy(corpus, folder.path / "renamed.txt")
        text = corpus.read_bytes()
        (folder.path / "other.txt").write_bytes(text[:100] + bytes([text[100] ^ 1]) + text[101:])
        (folder.path / "end.txt").write_bytes(text[:-1] + bytes([text[-1] ^ 1]))
        names = {"moved/corpus.txt": None, "renamed.txt": "changed: data.train_files corpus.txt -> renamed.txt\n",
                 "other.txt": "changed: data.train_digest ", "end.txt": "data.validation_digest "}
        problems = []
        for ranks in (None, 2):
            for name, says in names.items():
                result = folder.start("--resume", "out/checkpoints/step-4", ranks=ranks, run__dir=f"from.{name.replace('/', '.')}.{ranks}", data__train=name)
                going = next((line + "\n" for line in result.out.splitlines() if line.startswith("going on after step 4")), "")
                problems += [] if result.code == 0 else [f"{name}: exit code {result.code}"]
                problems += [f"{name}: {going}"] if ("changed" in going) != (says is not None) or (says or "") not in going else []
        return problems


def bad_id(train, whole):
    """An id that is outside the vocabulary ends a run when it is about to be read: all before it is saved, and goes on with good data."""
    good = [(i * i + 7 * i) % 250 for i in range(40 * 16 + 1)]
    keys = {"data__kind": "tokens", "data__validation_fraction": 0, "model__vocab": 256, "train__global_batch": 4, "train__steps": 10}
    problems, steps = [], set()
    for ranks, at in ((None, 100), (None, 639), (2, 350), (None, 250), (4, 517)):
        with Folder(train) as folder:
            tiny_run.write_uint16_tokens(folder.path / "t.bin", good)
            expected = (harness.weights_hash(folder.start(data__train="t.bin", run__dir="good", **keys).out), numbers(folder.path / "good"))
            tiny_run.write_uint16_tokens(folder.path / "t.bin", [300 if i == at else token for i, token in enumerate(good)])
            result = folder.start(data__train="t.bin", ranks=ranks, **keys)
            if not folder.checkpoints():  # within the first step: nothing is created
                found = expect(result, DATASET, "token 300", f"t.bin@{at}") + (["it has made a folder"] if (folder.path / "out").exists() else [])
                problems += [f"{ranks} ranks, id {at}: {p}" for p in found]
                continue
            done = len(harness.read_metrics(folder.path / "out"))
            steps.add(done)
            found = expect(result, DATASET, "token 300", f"t.bin@{at}", f"after step {done}", "--resume latest")
            found += [] if folder.checkpoints() == [f"step-{done}"] else [f"{done} steps, but {folder.checkpoints()}"]
            tiny_run.write_uint16_tokens(folder.path / "t.bin", good)
            found = found or compare(folder, folder.start("--resume", "latest", data__train="t.bin", ranks=ranks, **keys), expected)
            problems += [f"{ranks} ranks, id {at}: {p}" for p in found]
    return problems + ([] if len(steps) >= 2 and all(0 < done < 10 for done in steps) else [f"found after the steps {steps}"])


def bad_validation(train, whole):
    """The same of validation data, when it is first read."""
    with Folder(train) as folder:
        tiny_run.write_uint16_tokens(folder.path / "t.bin", [i % 250 for i in range(1000)])
        keys = {"data__kind": "tokens", "data__train": "t.bin", "data__validation": "v.bin", "model__vocab": 256, "run__validate_every": 3}
        problems = []
        for ranks in (None, 2):
            tiny_run.write_uint16_tokens(folder.path / "v.bin", [300 if i == 500 else i % 250 for i in range(1000)])
            result = folder.start("--overwrite", ranks=ranks, **keys)
            problems += expect(result, DATASET, "token 300", "v.bin@500", "after step 3", "--resume latest")
            problems += [] if folder.checkpoints() == ["step-3"] else [f"checkpoints are {folder.checkpoints()}"]
            tiny_run.write_uint16_tokens(folder.path / "v.bin", [i % 250 for i in range(1000)])
            result = folder.start("--resume", "latest", ranks=ranks, **keys)
            problems += [] if result.code == 0 and "val_loss" in harness.read_metrics(folder.path / "out")[5] else [f"it does not go on: {result}"]
        return problems


def main():
    whole = whole_run(harness.begin())
    cases = (other_ranks, documents, stopped, killed, in_background, disk_full, verified, damaged, refused, forked, other_data, bad_id, bad_validation)
    return harness.run_cases(cases, whole)


if __name__ == "__main__":
    sys.exit(main())
