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
from tasks_test import rows_of
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


def evaluates(train):
    """Tasks of run.evaluate are in the validations of what tune trains, at any number of ranks, as `evaluate` finds them; the file names them for every folder."""
    problems = []
    with Folder(train) as folder:
        folder.lines("counts.jsonl", [{"prompt": f"what is {i}", "choices": [f" {i} is {i}", " the end"], "answer": i % 2} for i in range(6)])
        folder.lines("says.jsonl", [{"prompt": "what is 2", "answer": "2", "max_tokens": 3}] * 2)
        (folder.path / "files").mkdir()
        words = ("--set", 'run.evaluate=["counts.jsonl", "says.jsonl"]', "--set", "run.validate_every=2", "--set", "train.deterministic=true", "--set", "train.micro_batch=1",
                 "--out", "files/with.toml")
        seen = []
        for ranks in (None, 3):
            result = folder.tune(*words, ranks=ranks)
            out = folder.path / "runs" / f"with-{len(seen) + 1}"
            metrics = harness.read_metrics(out) if result.code == 0 else []
            told = {line["step"]: {key: value for key, value in line.items() if key.startswith("task/")} for line in metrics}
            problems += [] if [step for step in told if told[step]] == [2, 3] and "  counts acc" in result.out else [f"tasks of {told}: {result}"]
            seen.append(told)
        problems += [] if seen[0] == seen[1] and len(seen[0].get(3, {})) == 3 else [f"other figures at 3 ranks: {seen}"]
        alone = harness.run([train, "evaluate", out, "counts.jsonl", "says.jsonl"], LIMIT_S, cwd=folder.path, env=ENV)
        figures = {f"task/{task}/{metric}": value for (task, metric), (_, value, _) in rows_of(alone).items()}
        problems += [] if figures and all(abs(seen[0][3][key] - figures[key]) < 6e-5 for key in seen[0][3]) else [f"evaluate says {figures}, the run {seen[0]}: {alone}"]
        (folder.path / "elsewhere").mkdir()
        again = harness.run([train, "../files/with.toml"], LIMIT_S, cwd=folder.path / "elsewhere", env=ENV)
        problems += [] if again.code == 0 and harness.weights_hash(again.out) == harness.weights_hash(result.out) else [f"from another folder: {again}"]
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


def adapter(folder, name, config, of="llama"):
    """An adapter's folder: one of tests/data/lora, with other words in its file."""
    to = folder.path / name
    shutil.copytree(harness.ROOT / "tests" / "data" / "lora" / of, to)
    said = json.loads((to / "adapter_config.json").read_text())
    (to / "adapter_config.json").write_text(json.dumps({**said, **config}))
    return f"lora.path={to}"


def model_with(folder, name, config):
    """The model's folder with other words in its config.json."""
    shutil.copytree(folder.path / "Tiny-1B", folder.path / name)
    said = json.loads((folder.path / name / "config.json").read_text())
    (folder.path / name / "config.json").write_text(json.dumps({**said, **config}))
    return name


def wrong_inputs(train):
    """A fine-tuner's mistakes in chats, templates, pairs, adapters, models, keys and tasks: one line each, with what, where and the documented code."""
    problems = []
    user, answer = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "good day"}
    good = {"messages": [user, answer]}
    with Folder(train) as folder:
        for name, lines in (("no-role", [good, {"messages": [user, {"content": "a"}]}]), ("names", [{"messages": [{"from": "human", "value": "a"}, answer]}]),
                            ("unknown-role", [{"messages": [user, {"role": "gpt", "content": "a"}]}]), ("empty", [{"messages": [user, {"role": "assistant", "content": ""}]}]),
                            ("no-answer", [{"messages": [user]}]), ("no-list", [{"messages": "hi"}]), ("tools", [{**good, "tools": [{"type": "function"}]}]),
                            ("image", [{"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}, answer]}]), ("good", [good] * 4),
                            ("same", [{"prompt": "a", "chosen": "b", "rejected": "b"}]), ("half", [{"prompt": "a", "chosen": "b", "rejected": "c"}, {"prompt": "a", "chosen": "b"}]),
                            ("pairs", [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 4), ("answerless", [{"prompt": "a", "completion": "b"}, {"prompt": "a"}]),
                            ("task", [{"question": "a"}])):
            folder.lines(f"{name}.jsonl", lines)
        (folder.path / "broken.jsonl").write_text(json.dumps(good) + '\n{"messages": [\n')
        for name, text in (("loops", "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"), ("unread", "{{ messages | xmlattr }}"), ("open", "{% if x %}")):
            (folder.path / f"{name}.jinja").write_text(text)
        plain = model_with(folder, "plain", {})
        for file in ("chat_template.jinja", "tokenizer_config.json"):
            (folder.path / plain / file).unlink(missing_ok=True)
        chat = "good.jsonl"
        rows = (("a message without a role", "no-role.jsonl", (), DATA, "messages[1] has no role"), ("another form of messages", "names.jsonl", (), DATA, "human: user, gpt: assistant"),
                ("a role that the template does not know", "unknown-role.jsonl", (), DATA, 'the role "gpt"'), ("an empty answer", "empty.jsonl", (), DATA, "of the role assistant is empty"),
                ("nobody who answers", "no-answer.jsonl", (), DATA, "no message of the role assistant"), ("messages that are no list", "no-list.jsonl", (), DATA, '"messages" is a JSON str'),
                ("tools without a place", "tools.jsonl", (), DATA, "no place for them"), ("an image", "image.jsonl", (), DATA, 'of type "image"'),
                ("a line that is no JSON", "broken.jsonl", (), DATA, "not JSON"),
                ("a template that loops", chat, ("--set", "data.chat_template=loops.jinja"), DATA, "it takes more than"),
                ("a template that is not read", chat, ("--set", "data.chat_template=unread.jinja"), MODEL, "the filter 'xmlattr' is not supported"),
                ("a template without an end", chat, ("--set", "data.chat_template=open.jinja"), MODEL, "is no template"),
                ("no template", chat, ("model", plain), MODEL, "has no chat template"),
                ("a pair of the same", "same.jsonl", (), DATA, "chosen and rejected are the same"), ("half a pair", "half.jsonl", (), DATA, 'no field "rejected"'),
                ("a prompt without an answer", "answerless.jsonl", (), DATA, 'no field "completion"'),
                ("pairs without adapters", "pairs.jsonl", ("--lora", "0"), CONFIG, 'preference.loss = "dpo" without adapters'),
                ("pairs beside what is trained whole", "pairs.jsonl", ("--set", 'lora.modules_to_save="lm_head"'), CONFIG, "lora.modules_to_save"),
                ("an adapter of another model", chat, ("--set", adapter(folder, "other", {}, "gpt2")), MODEL, "not an adapter of this model"),
                ("an adapter of another width", chat, ("--set", adapter(folder, "wide", {})), MODEL, "lora_A.weight is (4, 64), not (4, 32)"),
                ("an adapter of another kind", chat, ("--set", adapter(folder, "loha", {"peft_type": "LOHA"})), MODEL, "peft_type"),
                ("an adapter with biases", chat, ("--set", adapter(folder, "biased", {"bias": "lora_only"})), MODEL, "bias"),
                ("a target that is not there", chat, ("--set", 'lora.targets="q_prj"'), CONFIG, "the nearest are q_proj"),
                ("a rank above the sizes", chat, ("--lora", "4096"), CONFIG, "lora.rank 4096 is more than"),
                ("magnitudes of an embedding", chat, ("--set", 'lora.targets=["embed_tokens"]', "--set", "lora.dora=true"), CONFIG, "lora.dora does not go with"),
                ("a folder of a kind that is not read", chat, ("model", model_with(folder, "gptq", {"quantization_config": {"quant_method": "gptq", "bits": 4}})), MODEL, "quantization_config"),
                ("a family that is not known", chat, ("model", model_with(folder, "rwkv", {"model_type": "rwkv"})), MODEL, "rwkv"),
                ("tasks without validations", chat, ("--set", "run.evaluate=task.jsonl"), CONFIG, "run.validate_every"),
                ("a task of which nothing is known", chat, ("--set", "run.evaluate=task.jsonl", "--set", "run.validate_every=1"), DATA, "task.jsonl:1"),
                ("tasks that are not there", chat, ("--set", "run.evaluate=none.jsonl", "--set", "run.validate_every=1"), DATA, "none.jsonl"))
        before = sorted(path.name for path in folder.path.iterdir())
        for number, (name, data, words, code, says) in enumerate(rows):
            model = words[1] if words[:1] == ("model",) else "Tiny-1B"
            more = () if words[:1] == ("model",) else words
            rank = () if "--lora" in more else ("--lora", "4")
            rank = rank if not any(word.startswith("lora.path") for word in more) else ("--lora", "0")
            result = harness.run(harness.launch(2 if number % 5 == 4 else None, [train, "tune", model, data, *rank, *SMALL, *more]), LIMIT_S, cwd=folder.path, env=ENV)
            problems += [] if result.code == code and says in result.last_error_line() and result.err.count("error:") == 1 else [f"{name}, {code} and {says!r} expected: {result}"]
            made = [path.name for path in folder.path.iterdir() if path.name not in before]
            problems += [] if not (folder.path / "runs").exists() else [f"{name}: a run was made: {made}"]
            for path in made:
                shutil.rmtree(folder.path / path) if (folder.path / path).is_dir() else (folder.path / path).unlink()
        problems += [] if len(rows) >= 20 else ["fewer than twenty"]
    return problems


def main():
    harness.begin()
    return harness.run_cases((trains, evaluates, kinds, fits, refused, wrong_inputs))


if __name__ == "__main__":
    sys.exit(main())
