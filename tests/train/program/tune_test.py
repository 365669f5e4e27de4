#!/usr/bin/env python3
"""`train tune MODEL DATA` finds out what the data is, writes the configuration that it takes, with what makes it fit, and trains by it, on any number of
ranks; the file trains the same again, and is replaced only as it was written. Usage: tune_test.py TRAIN [WORD...]"""

import json
import pathlib
import shutil
import sys
import tempfile
import tomllib

import harness
from terminal_test import TEMPLATE

LIMIT_S = 120
ENV = {"OMP_NUM_THREADS": "1"}
USAGE, DATA, MODEL, OUT_OF_MEMORY, CANNOT_CREATE, CONFIG = 64, 65, 67, 71, 73, 78
CHATS = [{"messages": [{"role": "user", "content": f"what is {i}"}, {"role": "assistant", "content": f"{i} is {i}, and no more " * (1 + i % 3)}]} for i in range(12)]
SMALL = ("--set", "train.global_batch=4", "--set", "run.sample_tokens=0")


class Folder:
    """A model's folder with a tokenizer and a chat template, exported by a run of one step."""

    def __init__(self, train):
        self.train = train
        self.scratch = tempfile.TemporaryDirectory(prefix="tune.")
        self.path = pathlib.Path(self.scratch.name)
        (self.path / "tokenizer").mkdir()
        shutil.copy(harness.ROOT / "tests" / "data" / "tokenizers" / "qwen2" / "tokenizer.json", self.path / "tokenizer")
        (self.path / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|endoftext|>"}))
        self.lines("chats.jsonl", CHATS)
        (self.path / "base.toml").write_text("""model = {family = "llama", layers = 2, heads = 2, width = 32, hidden = 64, context = 2048}
data = {train = "chats.jsonl", format = "chat", tokenizer = "tokenizer"}
train = {steps = 1, global_batch = 1, sequence = 128}
run = {dir = "base", sample_tokens = 0, export = "Tiny-1B"}
""")
        result = harness.run([train, "base.toml"], LIMIT_S, cwd=self.path, env=ENV)
        if result.code != 0:
            raise RuntimeError(str(result))

    def lines(self, name, objects):
        (self.path / name).write_text("".join(json.dumps(each) + "\n" for each in objects))

    def tune(self, *words, ranks=None, data=("chats.jsonl",)):
        rank = () if "--lora" in words else ("--lora", "4")
        return harness.run(harness.launch(ranks, [self.train, "tune", "Tiny-1B", *data, *rank, *SMALL, *words]), LIMIT_S, cwd=self.path, env=ENV)

    def written(self, name="tune-Tiny-1B.toml"):
        return tomllib.loads((self.path / name).read_text())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.scratch.cleanup()


def trains(train):
    """One command trains on a chat file, with one rank or three; its file does the same, and is replaced by the next call."""
    problems = []
    with Folder(train) as folder:
        for number, ranks in enumerate((None, 3)):
            result = folder.tune("--set", "train.deterministic=true", ranks=ranks)
            says = f"written to tune-Tiny-1B.toml for {ranks or 1} rank{'s' if ranks else ''}: "
            problems += [] if result.code == 0 and result.out.count(says) == 1 and result.out.count("weights: ") == 1 else [str(result)]
            again = harness.run([train, "tune-Tiny-1B.toml"], LIMIT_S, cwd=folder.path, env=ENV)
            problems += [] if harness.weights_hash(again.out) == harness.weights_hash(result.out) else [f"{ranks}: another hash by the file: {again}"]
            problems += [] if (folder.path / f"runs/tune-Tiny-1B-{2 * number + 2}/metrics.jsonl").exists() else ["no second run"]
        keys = folder.written()
        wanted = {"lora": {"rank": 4, "alpha": 8.0, "targets": "all-linear"}, "precision": {"param": "bf16"},
                  "data": {"train": str(folder.path / "chats.jsonl"), "format": "chat"}, "model": {"path": str(folder.path / "Tiny-1B")}}
        for table, content in wanted.items():
            found = {key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in keys[table].items()}
            problems += [] if found == content else [f"{table} is {keys[table]}"]
        problems += [] if keys["train"]["epochs"] == 1 and keys["train"]["global_batch"] == 4 else [f"train is {keys['train']}"]
    return problems


def kinds(train):
    """The first line of the data says what it is; nothing but the file is made with --no-train."""
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    rows = (("pairs.jsonl", [pair], {"format": "preference"}), ("qa.jsonl", [{"question": "a", "answer": "b"}], {"format": "jsonl", "prompt_field": "question", "field": "answer"}),
            ("alpaca.json", [{"instruction": "a", "output": "b", "input": ""}], {"format": "jsonl", "prompt_field": "instruction", "field": "output"}),
            ("texts.jsonl", [{"text": "a text"}], {"format": "jsonl"}), ("book.txt", None, {}))
    problems = []
    with Folder(train) as folder:
        (folder.path / "book.txt").write_text("the day is over and the night is long " * 400)
        for name, objects, wanted in rows:
            if objects:
                folder.lines(name, objects * 8)
            result = folder.tune("--no-train", "--out", f"{name}.toml", data=(name,))
            if result.code != 0:
                problems.append(f"{name}: {result}")
                continue
            keys = folder.written(f"{name}.toml")
            found = {key: value for key, value in keys["data"].items() if key != "train"}
            problems += [] if found in (wanted, {**wanted, "field": "text"}) and result.out.count("\n") == 1 else [f"{name}: {found}, {result}"]
        problems += [] if folder.written("book.txt.toml")["train"]["sequence"] == 1024 else ["a book in windows of another length"]
        folder.tune("--no-train", "--out", "whole.toml", "--lora", "0", "--set", "train.steps=7")
        whole = folder.written("whole.toml")
        problems += [] if "lora" not in whole and whole["train"]["steps"] == 7 and "epochs" not in whole["train"] else [f"the whole model, seven steps: {whole}"]
        problems += [] if not (folder.path / "runs").exists() else ["--no-train has trained"]
    return problems


def fits(train):
    """Where memory is short the file has what makes it fit, and what is said on the command line."""
    with Folder(train) as folder:
        whole = folder.tune("--no-train", "--lora", "0", "--set", "train.micro_batch=4", "--set", "train.sequence=512", "--set", "offload.device_mib=5")
        keys = folder.written() if whole.code == 0 else {}
        problems = [] if whole.code == 0 and ": set train." in whole.out else [str(whole)]
        problems += [] if keys and keys["train"]["micro_batch"] < 4 and keys["offload"]["device_mib"] == 5 else [f"the file has {keys}"]
        result = harness.run([train, "plan", "tune-Tiny-1B.toml"], LIMIT_S, cwd=folder.path)
        problems += [] if result.code == 0 and "exceeds" not in result.out else [str(result)]
        result = folder.tune("--lora", "0", "--set", "train.sequence=512", "--set", "offload.device_mib=1", "--out", "none.toml")
        return problems + ([] if result.code == OUT_OF_MEMORY and not (folder.path / "none.toml").exists() else [str(result)])


def refused(train):
    """What is wrong ends with one line, on several ranks too, before anything is written; a file that somebody has changed stays."""
    problems = []
    with Folder(train) as folder:
        folder.lines("odd.jsonl", [{"body": "a"}])
        before = sorted(path.name for path in folder.path.iterdir())
        for words, data, code, says in (((), ("none.jsonl",), DATA, "none.jsonl"), ((), ("odd.jsonl",), DATA, "no field of the first line is known to be a text: body"),
                                        (("--set", "train.epoch=1"), ("chats.jsonl",), CONFIG, "train.epoch"), (("--lora", "x"), ("chats.jsonl",), USAGE, "--lora"),
                                        (("--out", "chats.jsonl"), ("chats.jsonl",), CANNOT_CREATE, "chats.jsonl"), (("--resume", "auto"), ("chats.jsonl",), USAGE, "--resume")):
            for ranks in (None, 2):
                result = folder.tune(*words, ranks=ranks, data=data)
                last = result.last_error_line()
                problems += [] if result.code == code and says in last and result.err.count("error:") == 1 else [f"{words} {data}, {says!r} expected: {result}"]
        result = harness.run([train, "tune", "Tiny-2B", "chats.jsonl"], LIMIT_S, cwd=folder.path)
        problems += [] if result.code in (MODEL, CONFIG) and "Tiny-2B" in result.last_error_line() else [str(result)]
        result = harness.run([train, "tune", "chats.jsonl", "Tiny-1B"], LIMIT_S, cwd=folder.path)
        problems += [] if result.code == MODEL and "a model is a folder, and this is a file" in result.last_error_line() else [str(result)]
        result = harness.run([train, "tune", "Tiny-1B"], LIMIT_S, cwd=folder.path)
        problems += [] if result.code == USAGE and "DATA is required" in result.last_error_line() else [str(result)]
        problems += [] if before == sorted(path.name for path in folder.path.iterdir()) else ["files were made"]
        folder.tune("--no-train")
        with open(folder.path / "tune-Tiny-1B.toml", "a") as file:
            file.write("train.lr = 1e-5\n")
        result = folder.tune("--no-train")
        return problems + ([] if result.code == CANNOT_CREATE and "tune-Tiny-1B.toml" in result.last_error_line() and folder.written()["train"]["lr"] == 1e-5 else [str(result)])


def main():
    harness.begin()
    return harness.run_cases((trains, kinds, fits, refused))


if __name__ == "__main__":
    sys.exit(main())
