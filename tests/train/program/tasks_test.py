#!/usr/bin/env python3
"""`train evaluate` of tasks gives lm-evaluation-harness's figures, sums of log-probabilities and texts (tests/data/tasks/expected.json), the same line at any
number of ranks; and what is wrong with a task ends with one line and the right exit code. Usage: tasks_test.py TRAIN"""

import json
import pathlib
import re
import shutil
import sys
import tempfile

import harness
import tiny_run
from huggingface_test import read_all, write_tensors
from inference_test import refusal, run

TASKS = harness.ROOT / "tests" / "data" / "tasks"
TOKENIZERS = harness.ROOT / "tests" / "data" / "tokenizers"
NAMES = ("arithmetic", "bare", "books", "completions", "edges", "plurals")
# Model, tokenizer, and what its tokenizer_config.json says.
MODELS = {
    "gpt2": ("gpt2", "gpt2", {"eos_token": "<|endoftext|>"}),
    "llama": ("llama", "llama2", {"bos_token": "<s>", "eos_token": "</s>"}),
}
USAGE, DATASET, CANNOT_CREATE, CONFIG = 64, 65, 73, 78
TOLERANCE = 2e-5  # of a sum: f32 over up to 128 tokens, in another order


def write_model(name, folder):
    """A folder whose model has as many rows of the vocabulary as the tokenizer wants: those that are there, and again with their numbers backwards."""
    case, tokenizer, config_of_tokenizer = MODELS[name]
    source = harness.ROOT / "tests" / "data" / "huggingface" / case
    folder.mkdir()
    shutil.copy(TOKENIZERS / tokenizer / "tokenizer.json", folder)
    tree = json.loads((folder / "tokenizer.json").read_text())
    vocab = max([*tree["model"]["vocab"].values(), *(token["id"] for token in tree["added_tokens"])]) + 1
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config_of_tokenizer}))
    ids = {token["content"]: token["id"] for token in tree["added_tokens"]}
    ends = {"bos_token_id": ids.get(config_of_tokenizer.get("bos_token")), "eos_token_id": ids[config_of_tokenizer["eos_token"]]}
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **ends, "vocab_size": vocab}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends["eos_token_id"]}))
    tensors = read_all(source)
    for key, (dtype, shape, values) in tensors.items():
        if shape[0] == config["vocab_size"]:
            rows = [values[i:i + 4] for i in range(0, len(values), 4)]
            tensors[key] = (dtype, [vocab, *shape[1:]], (values + b"".join(reversed(rows)))[:len(values) // shape[0] * vocab])
    write_tensors(folder / "model.safetensors", tensors)


def rows_of(result):
    """Figures by (task, metric) of the table."""
    found = re.findall(r"^(\S+) +(\d+) +(\S+) +(\S+) +(\S+)$", result.out, re.MULTILINE)
    return {(task, metric): (int(lines), float(value), float(error)) for task, lines, metric, value, error in found if task != "task"}


def line_problems(name, line, want):
    if "text" in want:
        # A run of bytes that is not UTF-8 is one U+FFFD for each byte there, and keeps its ASCII here.
        are_broken = "\ufffd" in line["text"] and "\ufffd" in want["text"]
        same = (line["text"] == want["text"] or are_broken) and line["exact_match"] == want["exact_match"]
        return [] if same else [f"{name}: {line}, wanted {want}"]
    near = len(line["log_probs"]) == len(want["log_probs"]) and all(abs(a - b) <= TOLERANCE * max(1, abs(b)) for a, b in zip(line["log_probs"], want["log_probs"]))
    same = near and all(line[metric] == want[metric] for metric in ("acc", "acc_norm"))
    return [] if same else [f"{name}: {line}, wanted {want}"]


def value_problems(result, lines, wanted):
    problems = [] if result.code == 0 else [f"exit code {result.code}"]
    figures = rows_of(result)
    for task, want in wanted.items():
        own = [line for line in lines if line["task"] == task]
        problems += [] if len(own) == len(want["lines"]) else [f"{task}: {len(own)} lines, wanted {len(want['lines'])}"]
        for line, expected in zip(own, want["lines"]):
            problems += line_problems(f"{task}:{line['line']}", line, expected)
        for metric, (value, error) in want["figures"].items():
            lines_, value_, error_ = figures.get((task, metric), (0, -1, -1))
            same = lines_ == len(own) and abs(value_ - value) < 6e-5 and abs(error_ - error) < 6e-5
            problems += [] if same else [f"{task} {metric}: {lines_} lines, {value_} +- {error_}, wanted {value} +- {error}"]
    return problems


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def value_cases(train, folder, report):
    expected = json.loads((TASKS / "expected.json").read_text())["models"]
    files = [TASKS / f"{name}.jsonl" for name in NAMES]
    for name, wanted in expected.items():
        write_model(name, folder / name)
        result = run(folder, [train, "evaluate", name, *files, "--out", f"{name}.jsonl"])
        lines = read_lines(folder / f"{name}.jsonl")
        problems = value_problems(result, lines, wanted)
        problems += [] if result.err.count("lose their beginning") == 1 else ["prompts that are too long are not said once"]
        report.case(f"the harness's values of {name}", problems, result)
        for ranks, sets in ((2, {}), (None, {"comm__ranks": 3, "train__micro_batch": 3})):
            out = f"{name}-{ranks}.jsonl"
            again = run(folder, [train, "evaluate", name, *files, "--out", out, *tiny_run.options(**sets)], ranks)
            problems = value_problems(again, read_lines(folder / out), wanted)
            problems += [] if again.out == result.out else ["another table than of one rank"]
            report.case(f"tasks on {ranks or 3} ranks, {name}", problems, again)


def written_case(train, folder, report):
    """What the model has written is the right answer."""
    asked = [json.loads(line) for line in (TASKS / "plurals.jsonl").read_text().splitlines()]
    written = [line["text"] for line in read_lines(folder / "llama.jsonl") if line["task"] == "plurals"]
    task = [{**line, "answer": text} for line, text in zip(asked, written) if "\ufffd" not in text][:4]
    task[3]["answer"] += " "
    (folder / "written.jsonl").write_text("".join(json.dumps(line) + "\n" for line in task))
    result = run(folder, [train, "evaluate", "llama", "written.jsonl"], 2)
    figure = rows_of(result).get(("written", "exact_match"))
    report.case("texts that are right, and one with a space more", [] if figure == (4, 0.75, 0.25) else [f"{figure}, wanted 3 of 4"], result)


def refusal_cases(train, folder, report):
    """The folder has the model gpt2."""
    good = TASKS / "plurals.jsonl"
    prompt = {"prompt": "a"}
    for i, (name, line, says) in enumerate((
        ("a task that is no JSON", '{"prompt": "a", ', ["not JSON"]),
        ("no answer", {**prompt, "choices": ["b", "c"]}, ["no field \"answer\""]),
        ("no prompt", {"choices": ["b", "c"], "answer": 0}, ["no field \"prompt\""]),
        ("an answer beyond the choices", {**prompt, "choices": ["b", "c"], "answer": 2}, ["answer 2", "2 choices"]),
        ("an answer that is no choice", {**prompt, "choices": ["b", "c"], "answer": "d"}, ["none of the choices"]),
        ("one choice", {**prompt, "choices": ["b"], "answer": 0}, ["one choice"]),
        ("an empty choice", {**prompt, "choices": ["b", ""], "answer": 0}, ["choices", "none of them empty"]),
        ("an end beside choices", {**prompt, "choices": ["b", "c"], "answer": 0, "until": "x"}, ["until", "no effect"]),
        ("a line of the other form", {**prompt, "answer": "b"}, ["no choices, unlike the first"]),
        ("a choice that does not fit", {**prompt, "choices": ["b", "c" * 3000], "answer": 0}, ["choice 1", "train.sequence"]),
    )):
        first = {"prompt": "x", "choices": ["y", "z"], "answer": "z"}
        path = folder / f"bad-{i}.jsonl"
        path.write_text(json.dumps(first) + "\n" + (line if isinstance(line, str) else json.dumps(line)) + "\n")
        refusal(train, folder, report, name, ["evaluate", "gpt2", path.name], DATASET, [f"bad-{i}.jsonl:2", *says])
    for i, (name, line, says) in enumerate((
        ("more tokens than fit", {**prompt, "answer": "b", "max_tokens": 128}, ["max_tokens is 128", "train.sequence"]),
        ("no tokens", {**prompt, "answer": "b", "max_tokens": 0}, ["max_tokens"]),
        ("a delimiter without choices", {**prompt, "answer": "b", "delimiter": ""}, ["delimiter", "no effect"]),
        ("an answer that is a number", {**prompt, "answer": 3}, ["answer", "not a text"]),
    )):
        path = folder / f"text-{i}.jsonl"
        path.write_text(json.dumps(line) + "\n")
        refusal(train, folder, report, name, ["evaluate", "gpt2", path.name], DATASET, [f"text-{i}.jsonl:1", *says])
    (folder / "data.txt").write_text("some text")
    (folder / "there").write_text("mine")
    for name, arguments, code, says in (
        ("tasks and data", [good, "data.txt"], USAGE, ["some are data"]),
        ("logits of tasks", [good, "--logits", "l.bin"], USAGE, ["--logits"]),
        ("lines of no task", ["data.txt", "--out", "o.jsonl"], USAGE, ["--out"]),
        ("lines over a file", [good, "--out", "there"], CANNOT_CREATE, ["there"]),
    ):
        refusal(train, folder, report, name, ["evaluate", "gpt2", *arguments], code, says)


def bytes_case(train, folder, report):
    """A run of bytes has figures, too, and its data of prompts and answers stays data."""
    config = tiny_run.write_files(folder)
    run(folder, [train, config, *tiny_run.options(model__context=64, run__dir="bytes", train__steps=1)])
    task = folder / "small.jsonl"
    task.write_text("".join(json.dumps({"prompt": "the sun", "choices": [" rises", "zq"], "answer": i}) + "\n" for i in (0, 1)))
    result = run(folder, [train, "evaluate", "bytes", task], 2)
    problems = [] if rows_of(result).get(("small", "acc"), ())[:2] == (2, 0.5) else ["not one of two is right"]
    problems += [] if rows_of(result).get(("small", "acc"), (0, 0, 0))[2] == 0.5 else ["another standard error"]
    report.case("a task of a run of bytes", problems, result)
    data = folder / "answers.jsonl"
    data.write_text(json.dumps({"prompt": "the", "answer": " sun rises"}) + "\n")
    sets = tiny_run.options(data__format="jsonl", data__field="answer", data__prompt_field="prompt", data__overlong="truncate")
    result = run(folder, [train, "evaluate", "bytes", data, *sets])
    report.case("prompts and answers that are data", [] if result.out.startswith("loss ") else ["no loss"], result)


def training_case(train, folder, report):
    """Tasks of a run's validations: the figures of `evaluate` of each checkpoint, at any number of ranks, and the run's own numbers stay."""
    config = tiny_run.write_files(folder)
    keys = {"train__steps": 4, "run__validate_every": 2, "checkpoint__every": 2, "checkpoint__keep": 0, "train__deterministic": True, "model__context": 64}
    run(folder, [train, config, *tiny_run.options(**keys, run__dir="without")])
    wanted, tasks = harness.read_metrics(folder / "without"), folder / "tasks"
    tasks.mkdir()
    for name, lines in (("sun", [{"prompt": "the sun", "choices": [" rises", " falls", "zq"], "answer": i % 3} for i in range(7)]),
                        ("river", [{"prompt": "the river", "answer": "the", "max_tokens": 3}] * 3)):
        (tasks / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = [tasks / "sun.jsonl", tasks / "river.jsonl"]
    seen = None
    for ranks, more in ((1, {"run__validate_first": True}), (2, {"train__average": 0.9, "run__validate_average": True, "train__lr": 0.5}), (3, {})):
        is_average = "train__average" in more
        if is_average:
            run(folder, [train, config, *tiny_run.options(**keys, **more, run__dir="averaged")])
        alone = harness.read_metrics(folder / "averaged") if is_average else wanted
        out = f"with-{ranks}"
        # Beside the configuration, too, files are found.
        result = run(folder.parent, [train, config, *tiny_run.options(**keys, **more, run__dir=folder / out, run__evaluate='["tasks/sun.jsonl", "tasks/river.jsonl"]')], ranks)
        metrics = harness.read_metrics(folder / out)
        problems = [] if result.code == 0 else [f"exit code {result.code}"]
        steps = [line for line in metrics if line["step"] > 0]
        problems += [] if [line["loss"] for line in steps] == [line["loss"] for line in alone] else ["other losses than without tasks"]
        told = {line["step"]: {key: value for key, value in line.items() if key.startswith("task/")} for line in metrics}
        problems += [] if [step for step in told if told[step]] == ([0, 2, 4] if ranks == 1 else [2, 4]) else [f"tasks in the steps {told}"]
        problems += [] if all(line["allocations"] == 0 for line in steps[1:]) else ["tasks take memory that was not planned"]
        for step in (2, 4):
            checkpoint = run(folder, [train, "evaluate", f"{out}/checkpoints/step-{step}", *files])
            figures = {f"task/{task}/{metric}": value for (task, metric), (_, value, _) in rows_of(checkpoint).items()}
            near = figures.keys() == told[step].keys() and all(abs(told[step][key] - figures[key]) < 6e-5 for key in figures)
            is_as_wanted = near if not is_average else step == 2 or not near  # the average is another model by then
            problems += [] if is_as_wanted and len(figures) == 3 else [f"step {step}: {told[step]}, evaluate of the trained weights says {figures}"]
            problems += [] if f"step {step}/4  sun acc" in result.out and "; river exact_match" in result.out else ["standard output does not say it"]
        seen = seen or told[4]
        problems += [] if is_average or told[4] == seen else ["other figures than of one rank"]
        report.case(f"tasks while a run trains, {ranks} ranks", problems, result)
    (tasks / "again").mkdir()
    shutil.copy(files[0], tasks / "again")
    for name, given, code, says in (("a task that is not there", ["no.jsonl"], DATASET, ["no.jsonl"]), ("data in place of a task", [config], DATASET, ["tiny.toml"]),
                                    ("two tasks of a name", [files[0], tasks / "again" / "sun.jsonl"], CONFIG, ["run.evaluate", "sun"])):
        listed = json.dumps([str(path) for path in given])
        refusal(train, folder, report, name, [config, *tiny_run.options(**keys, run__dir="refused", run__evaluate=listed)], code, says)


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="tasks.") as scratch:
        folder = pathlib.Path(scratch)
        value_cases(train, folder, report)
        written_case(train, folder, report)
        refusal_cases(train, folder, report)
        bytes_case(train, folder, report)
        training_case(train, folder, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
