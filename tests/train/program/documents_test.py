#!/usr/bin/env python3
"""The loss of packed documents, and of what follows a prompt, is that of each document by itself: the sum over its targets, as `train --evaluate`
gives it of the document's text alone, whatever the batches and ranks; and no step takes memory from the system or waits for data that was read.
Usage: documents_test.py TRAIN"""

import json
import pathlib
import re
import sys
import tempfile

import harness
import tiny_run

LIMIT_S = 60
DOCUMENTS = [("", "the sea"), ("sun ", "rises over"), ("a", " field"), ("over a ", "quiet one"), ("it carri", "es us")]


def nats(train, folder, run, text):
    """Of all targets of a text that has a sequence to itself."""
    (folder / "one.txt").write_text(text)
    as_text = ["--set", "data.format=stream", "--set", "data.field=text", "--set", "data.prompt_field="]
    result = harness.run([train, "--evaluate", run, "one.txt", *as_text], LIMIT_S, cwd=folder)
    match = re.search(r"loss (\S+) perplexity \S+ tokens (\d+)", result.out)
    if result.code != 0 or int(match[2]) != len(text) - 1:
        raise RuntimeError(f"{text!r}: {result}")
    return float(match[1]) * (len(text) - 1)


def run(train, folder, data_format, **keys):
    name = f"out-{data_format}-{len(keys)}-{'-'.join(str(v) for v in keys.values() if isinstance(v, int))}"
    result = harness.run([train, folder / "tiny.toml", *tiny_run.options(
        run__dir=folder / name, data__format=data_format, train__steps=2, train__lr="1e-30", run__validate_every=2, run__sample_tokens=0, **keys)],
        LIMIT_S, cwd=folder)
    if result.code != 0:
        raise RuntimeError(f"{keys}: {result}")
    return folder / name, harness.read_metrics(folder / name)


def check(train, folder, family, has_prompts):
    family_keys = {} if family == "gpt2" else {"model__family": family, "model__kv_heads": 1, "model__hidden": 40}
    texts = [(q, a) if has_prompts else ("", q + a) for q, a in DOCUMENTS]
    if has_prompts:
        lines, data_format = "".join(json.dumps({"q": q, "a": a}) + "\n" for q, a in texts), "jsonl"
        form = {"data__prompt_field": "q", "data__field": "a"}
    else:
        lines, data_format, form = "".join(a + "\n" for _, a in texts), "lines", {}
    path = folder / f"docs.{data_format}"
    path.write_text(lines)
    problems, expected, out = [], None, None
    targets = sum(len(a) if q else len(a) - 1 for q, a in texts)
    for batch, micro, ranks in ((1, 1, 1), (6, 3, 2), (3, 1, 3)):
        keys = {"train__global_batch": batch, "train__micro_batch": micro, "comm__ranks": ranks, "run__validate_batches": 100, **form, **family_keys}
        out, metrics = run(train, folder, data_format, data__train=path, data__validation=path, **keys)
        if expected is None:
            total = sum(nats(train, folder, out, q + a) - (nats(train, folder, out, q) if len(q) > 1 else 0) for q, a in texts)
            expected = total / targets
        found = metrics[1]["val_loss"]
        problems += [f"{keys}: {found} instead of {expected}"] if abs(found - expected) > 2e-6 else []
        problems += [f"{keys}: memory from the system in the second step"] if metrics[1]["allocations"] != 0 else []
    for ranks, files in ((None, []), (3, [path])):
        result = harness.run(harness.launch(ranks, [train, "--evaluate", out, *files]), LIMIT_S, cwd=folder)
        match = re.search(r"loss (\S+) perplexity \S+ tokens (\d+)", result.out)
        if result.code != 0 or abs(float(match[1]) - expected) > 2e-6 or int(match[2]) != targets:
            problems.append(f"--evaluate {files}: not {expected} of {targets} tokens: {result}")
    result = harness.run([train, "--evaluate", out, "--logits", "logits.bin"], LIMIT_S, cwd=folder)
    problems += [] if result.code == 78 and "logits are of one text" in result.last_error_line() else [f"logits of documents: {result}"]
    return problems


def waits(train):
    """Between two steps there is time to read the next samples: most steps have no wait for data, of text that is tokenised too. They are 30 ms apart,
    and what is read in them takes microseconds; without reading ahead each would have its wait."""
    problems = []
    with tempfile.TemporaryDirectory(prefix="documents.") as name:
        folder = pathlib.Path(name)
        tiny_run.write_files(folder)
        tokenizer = harness.ROOT / "tests" / "data" / "tokenizers" / "gpt2"
        for what, keys in {"bytes": {}, "lines": {"data__format": "lines", "data__overlong": "split"},
                           "text with a tokenizer": {"data__tokenizer": tokenizer, "data__format": "lines", "data__overlong": "split"}}.items():
            result = harness.run([train, folder / "tiny.toml", *tiny_run.options(run__dir=folder / what.replace(" ", "-"), train__steps=20, train__global_batch=4,
                                                                                 run__sample_tokens=0, **keys)],
                                 LIMIT_S, cwd=folder, env={"TRAIN_FAULT": "step:delay=30"})
            lines = harness.read_metrics(folder / what.replace(" ", "-")) if result.code == 0 else []
            waiting = [line["step"] for line in lines if "data_wait_ms" in line]
            problems += [] if len(lines) == 20 and len(waiting) <= 10 else [f"{what}: steps {waiting} have waited: {result}"]
    return problems


def without_targets(train):
    """No target: a step without one updates nothing, says so once and is counted; --evaluate of documents without one is refused."""
    with tempfile.TemporaryDirectory(prefix="documents.") as name:
        folder, problems = pathlib.Path(name), []
        tiny_run.write_files(folder)
        (folder / "docs.txt").write_text("sixteen letters!\n" + "a\n" * 32)
        (folder / "none.txt").write_text("a\n" * 3)
        keys = {"data__format": "lines", "data__train": folder / "docs.txt", "data__validation_fraction": 0, "train__global_batch": 1, "train__lr": 0.1}
        result = harness.run([train, folder / "tiny.toml", *tiny_run.options(run__dir=folder / "out", train__steps=3, run__sample_tokens=0, **keys)],
                             LIMIT_S, cwd=folder)
        last = harness.read_metrics(folder / "out")[-1] if result.code == 0 else {}
        problems += [] if last.get("skipped_steps") == 2 else [f"{last} {result}"]
        problems += [] if result.err.count("no token of its batch is a target") == 1 else [f"said {result.err!r}"]
        result = harness.run([train, "--evaluate", "out", "none.txt"], LIMIT_S, cwd=folder)
        problems += [] if result.code == 65 and "no token of these documents is a target" in result.err and not result.out else [f"--evaluate: {result}"]
        return problems


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    report = harness.Report()
    for family, has_prompts in (("gpt2", False), ("gpt2", True), ("llama", True)):
        with tempfile.TemporaryDirectory(prefix="documents.") as name:
            folder = pathlib.Path(name)
            tiny_run.write_files(folder)
            report.case(f"{family}, {'prompts and answers' if has_prompts else 'lines'}: the loss is that of each document by itself",
                        check(train, folder, family, has_prompts))
    report.case(waits.__doc__.partition(":")[2].partition(".")[0].strip(), waits(train))
    report.case(without_targets.__doc__.partition(":")[2].partition(";")[0].strip(), without_targets(train))
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
