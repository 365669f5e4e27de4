#!/usr/bin/env python3
"""`train --evaluate` gives the loss that a run's own validation and a sum over the logits give, the same at any number of ranks, and what goes wrong
ends with one line, the right exit code and nothing left. Text through data.tokenizer trains as the token file that --tokenize makes of it.
Usage: inference_test.py TRAIN"""

import array
import json
import math
import os
import pathlib
import re
import shutil
import sys
import tempfile

import harness
import tiny_run

LIMIT_S = 60
TOKENIZERS = harness.ROOT / "tests" / "data" / "tokenizers"
HF = harness.ROOT / "tests" / "data" / "huggingface"
USAGE, DATASET, MODEL, CHECKPOINT, CANNOT_CREATE, CONFIG = 64, 65, 67, 68, 73, 78
LINE = re.compile(r"loss (\S+) perplexity (\S+) tokens (\d+)\n")
ENV = {"OMP_NUM_THREADS": "1"}


def run(folder, command, ranks=None):
    return harness.run(harness.launch(ranks, command), LIMIT_S, cwd=folder, env=ENV)


def trained(train, folder, **sets):
    """A run of three steps with a checkpoint, and a validation part of 20 whole windows."""
    config = tiny_run.write_files(folder)
    (folder / "val.txt").write_text(tiny_run.corpus_text(16 * 20 + 1)[::-1])
    sets = {"checkpoint__every": 3, "run__validate_every": 3, "run__validate_batches": 100, "data__validation": "val.txt", **sets}
    result = run(folder, [train, config, *tiny_run.options(**sets)])
    if result.code != 0:
        raise RuntimeError(str(result))
    return folder / "out"


def read_line(result):
    """Loss, perplexity and tokens, where stdout is that line and no other."""
    found = LINE.fullmatch(result.out) if result.code == 0 else None
    return (float(found[1]), float(found[2]), int(found[3])) if found else (math.nan, math.nan, -1)


def loss_of_logits(path, ids, vocab):
    values = array.array("f")
    values.frombytes(path.read_bytes())
    if len(values) != (len(ids) - 1) * vocab:
        return math.nan
    total = 0.0
    for i, target in enumerate(ids[1:]):
        row = values[i * vocab:(i + 1) * vocab]
        most = max(row)
        total += most + math.log(sum(math.exp(x - most) for x in row)) - row[target]
    return total / (len(ids) - 1)


def is_near(a, b, tolerance=2e-6):
    return abs(a - b) <= tolerance * abs(b)


def evaluate_cases(train, folder, out, report):
    first = run(folder, [train, "--evaluate", out])
    loss, perplexity, tokens = read_line(first)
    validated = harness.read_metrics(out)[-1]["val_loss"]
    problems = [] if tokens == 320 else [f"{tokens} tokens, wanted 320"]
    problems += [] if is_near(loss, validated) else [f"the loss is {loss}, the run's validation {validated}"]
    problems += [] if is_near(perplexity, math.exp(loss), 1e-5) else [f"the perplexity is {perplexity}"]
    report.case("the validation data of a run", problems, first)

    second = run(folder, [train, "--evaluate", out / "checkpoints" / "step-3", "val.txt"])
    report.case("a checkpoint and a file", [] if second.out == first.out else ["another line than of the run"], second)
    shutil.copytree(out / "checkpoints" / "step-3", folder / "moved")
    second = run(folder, [train, "--evaluate", folder / "moved"])
    report.case("a checkpoint without its run", [] if second.out == first.out else ["another line than of the run"], second)

    text = (folder / "corpus.txt").read_bytes()[:1000]  # 62 windows of 16 and one of 7
    (folder / "part.txt").write_bytes(text)
    first = run(folder, [train, "--evaluate", out, "part.txt", "--logits", "one.bin"])
    loss, _, tokens = read_line(first)
    of_logits = loss_of_logits(folder / "one.bin", text, 256) if first.code == 0 else math.nan
    problems = [] if tokens == 999 and is_near(loss, of_logits) else [f"{tokens} tokens with {loss}, by the logits {of_logits}"]
    report.case("logits have the loss, the last window's too", problems, first)

    rows = run(folder, [train, "--evaluate", out, "part.txt", "--set", "train.micro_batch=5"])
    report.case("micro-batches of another size", [] if is_near(read_line(rows)[0], loss) else ["another loss"], rows)
    for ranks, sets in ((2, {}), (3, {"shard__layout": "per_parameter"}), (3, {"shard__strategy": "hsdp", "shard__group_size": 2}),
                        (None, {"comm__ranks": 4, "shard__strategy": "ddp"})):
        name = f"logits-{ranks}-{len(sets)}.bin"
        again = run(folder, [train, "--evaluate", out, "part.txt", "--logits", name, *tiny_run.options(**sets)], ranks)
        problems = [] if again.out == first.out else ["another line than on one rank"]
        problems += [] if again.code == 0 and (folder / name).read_bytes() == (folder / "one.bin").read_bytes() else ["other logits"]
        report.case(f"evaluation on {ranks or 4} ranks, {sets}", problems, again)
        (folder / name).unlink(missing_ok=True)


def ids_of(result):
    return [int(word) for word in result.out.strip().split(",")] if result.code == 0 and re.fullmatch(r"[\d,]+\n", result.out) else None


def greedy_by_logits(train, folder, out, prompt, count):
    """What comes out where each token is the most likely one by the logits of an evaluation of all before it."""
    tokens = list(prompt)
    for i in range(count):
        (folder / "so-far.txt").write_bytes(bytes(tokens) + b"?")  # the last target does not matter
        (folder / "so-far.bin").unlink(missing_ok=True)
        run(folder, [train, "--evaluate", out, "so-far.txt", "--logits", "so-far.bin"])
        row = array.array("f")
        row.frombytes((folder / "so-far.bin").read_bytes()[-4 * 256:])
        tokens.append(row.index(max(row)))
    return tokens[len(prompt):]


def sample_cases(train, folder, out, report):
    first = run(folder, [train, folder / "tiny.toml", *tiny_run.options(run__dir="again", run__sample_tokens=6, run__sample_prompt="the sun",
                                                                        checkpoint__every=3)])
    said = [line[len("sample: "):] for line in first.out.splitlines() if line.startswith("sample: ")]
    second = run(folder, [train, "--sample", "again", "--prompt", "the sun", "--tokens", "6"])
    report.case("the sample that a run has printed", [] if [second.out.rstrip("\n")] == said else [f"{second.out!r}, the run {said}"], second)

    prompt = [ord(c) for c in "the sun"]
    ids = ["--prompt-ids", ",".join(map(str, prompt)), "--print-ids"]
    greedy = run(folder, [train, "--sample", out, *ids, "--temperature", "0", "--tokens", "8"])
    wanted = greedy_by_logits(train, folder, out, prompt, 8)
    report.case("greedy by the logits of evaluations", [] if ids_of(greedy) == wanted else [f"{ids_of(greedy)}, wanted {wanted}"], greedy)
    by_text = run(folder, [train, "--sample", out, "--prompt", "the sun", "--print-ids", "--top-k", "1", "--tokens", "8"])
    report.case("one token to choose from, of a text", [] if ids_of(by_text) == wanted else [f"{ids_of(by_text)}, wanted {wanted}"], by_text)
    few = run(folder, [train, "--sample", out, *ids, "--top-p", "0", "--tokens", "8"])
    report.case("no probability to choose from", [] if ids_of(few) == wanted else [f"{ids_of(few)}, wanted {wanted}"], few)

    # The context has 16 tokens: 40 are drawn beyond it, and from a prompt that is longer.
    drawn = []
    for prompt in ("the sun", "the sun rises over a quiet field"):
        command = [train, "--sample", out, "--prompt", prompt, "--print-ids", "--tokens", "40", "--temperature", "1.5", "--seed", "5"]
        one = run(folder, command)
        drawn.append(ids_of(one))
        problems = [] if len(ids_of(one) or []) == 40 else ["not 40 tokens"]
        for ranks, sets in ((2, {}), (3, {"shard__layout": "per_parameter"}), (None, {"comm__ranks": 4})):
            again = run(folder, [*command, *tiny_run.options(**sets)], ranks)
            problems += [] if again.code == 0 and again.out == one.out else [f"other tokens on {ranks or 4} ranks: {again}"]
        report.case(f"a sample beyond the context, {len(prompt)} to go on from", problems, one)
    other = run(folder, [*command[:-1], "6"])
    report.case("another seed", [] if other.code == 0 and ids_of(other) not in drawn else ["the same tokens"], other)


def tie_case(train, folder, saved, of_weights, of_checkpoint, report):
    """A run writes its final weights last: they count where the clock has not moved on since the checkpoint, but not where that is newer."""
    weights, manifest = saved / "model.safetensors", saved / "checkpoints" / "step-3" / "manifest.json"
    lines, exported = {}, {}
    for name, later in (("tie", 0), ("newer", 1)):
        time = weights.stat().st_mtime_ns
        os.utime(manifest, ns=(time, time + later))
        lines[name] = run(folder, [train, "--evaluate", saved])
        run(folder, [train, "--export", name, saved])
        exported[name] = (folder / name / "model.safetensors").read_bytes() if (folder / name).exists() else None
    problems = [] if lines["tie"].out == of_weights else ["the final weights are not evaluated"]
    problems += [] if lines["newer"].out == of_checkpoint else ["the newer checkpoint is not evaluated"]
    problems += [] if None not in exported.values() and exported["tie"] != exported["newer"] else ["the same is exported"]
    report.case("a checkpoint as old as the final weights, and a newer one", problems, "\n".join(map(str, lines.values())))


def ended_cases(train, report):
    """A run that has ended without a checkpoint is its final weights; of a run with both what was written last counts."""
    with tempfile.TemporaryDirectory(prefix="inference.") as scratch:
        folder = pathlib.Path(scratch)
        saved = trained(train, folder)
        wanted = run(folder, [train, "--evaluate", saved / "checkpoints" / "step-3"])
        ended = [run(folder, [train, folder / "tiny.toml", *tiny_run.options(data__validation="val.txt", run__dir="ended")])]
        ended += [run(folder, [train, "--evaluate", "ended"], ranks) for ranks in (None, 3)]
        problems = [] if wanted.code == 0 and [result.out for result in ended[1:]] == [wanted.out] * 2 else ["another line than of the checkpoint"]
        report.case("the final weights of a run", problems, "\n".join(map(str, [wanted, *ended])))
        more = [run(folder, [train, folder / "tiny.toml", *tiny_run.options(data__validation="val.txt", run__dir=saved, train__steps=5),
                             "--resume", "latest"]), run(folder, [train, "--evaluate", saved]), run(folder, [train, "--evaluate", saved / "checkpoints" / "step-3"])]
        problems = [] if more[1].code == 0 and more[1].out != wanted.out and more[2].out == wanted.out else ["the older weights are evaluated"]
        report.case("final weights that are newer than a checkpoint", problems, "\n".join(map(str, more)))
        tie_case(train, folder, saved, more[1].out, more[2].out, report)
        (saved / "model.safetensors").write_bytes((saved / "model.safetensors").read_bytes()[:-4])
        refusal(train, folder, report, "final weights cut off", ["--evaluate", saved], MODEL, ["model.safetensors"])


def folder_cases(train, report):
    """A model's folder has the loss and goes on as its own program computes it."""
    for case in sorted(path for path in HF.glob("*") if (path / "tokens.bin").is_file()):
        want = json.loads((case / "expected.json").read_text())
        with tempfile.TemporaryDirectory(prefix="inference.") as scratch:
            folder = pathlib.Path(scratch)
            lines = [run(folder, [train, "--evaluate", case, case / "tokens.bin", "--set", "train.sequence=64"], ranks) for ranks in (None, 3)]
            loss = read_line(lines[0])[0]
            prompt = ",".join(map(str, want["greedy"]["prompt"]))
            greedy = run(folder, [train, "--sample", case, "--prompt-ids", prompt, "--print-ids", "--temperature", "0", "--tokens", "16", "--set", "comm.ranks=2"])
            problems = [] if is_near(loss, want["loss"], 1e-6) and lines[1].out == lines[0].out else [f"the loss is {loss}, wanted {want['loss']}"]
            problems += [] if ids_of(greedy) == want["greedy"]["next16"] else [f"{ids_of(greedy)}, wanted {want['greedy']['next16']}"]
            report.case(f"the folder of a model, {case.name}", problems, "\n".join(map(str, [*lines, greedy])))
            ends = json.loads((case / "generation_config.json").read_text())
            shutil.copytree(case, folder / "ends")
            end = want["greedy"]["next16"][2]
            (folder / "ends" / "generation_config.json").write_text(json.dumps({**ends, "eos_token_id": [319, end]}))
            cut = run(folder, [train, "--sample", "ends", "--prompt-ids", prompt, "--print-ids", "--temperature", "0", "--tokens", "16"])
            wanted = want["greedy"]["next16"][:want["greedy"]["next16"].index(end) + 1]
            report.case(f"a sample that ends, {case.name}", [] if ids_of(cut) == wanted else [f"{ids_of(cut)}, wanted {wanted}"], cut)
            refusal(train, folder, report, "a folder and no file", ["--evaluate", "ends"], USAGE, ["no validation data"])


def sample_refusals(train, folder, out, report):
    for name, arguments, code, says in (
        ("a sample of no run", ["--sample", "gone"], CHECKPOINT, ["no such folder", "gone"]),
        ("a prompt and no sample", ["tiny.toml", "--prompt", "x"], USAGE, ["--prompt is an option of train sample"]),
        ("ids to print and no sample", ["--evaluate", out, "--print-ids"], USAGE, ["--print-ids is an option of train sample"]),
        ("a sample and an evaluation", ["--evaluate", out, "--sample", out], USAGE, ["--evaluate and --sample"]),
        ("two prompts", ["--sample", out, "--prompt", "x", "--prompt-ids", "1"], USAGE, ["--prompt and --prompt-ids"]),
        ("ids that are none", ["--sample", out, "--prompt-ids", "1,,2"], USAGE, ["--prompt-ids"]),
        ("an id outside the vocabulary", ["--sample", out, "--prompt-ids", "1,256"], CONFIG, ["256", "--prompt-ids"]),
        ("no tokens", ["--sample", out, "--tokens", "0"], USAGE, ["--tokens"]),
        ("a temperature below 0", ["--sample", out, "--temperature", "-1"], USAGE, ["--temperature"]),
        ("a probability above 1", ["--sample", out, "--top-p", "1.5"], USAGE, ["--top-p"]),
        ("a text beside the prompt", ["--sample", out, "val.txt"], USAGE, ["val.txt"]),
        ("a sample and resume", ["--sample", out, "--resume", "latest"], USAGE, ["--resume"]),
        ("a prompt without a tokenizer", ["--sample", out, "--prompt", "x", "--set", "data.kind=tokens"], CONFIG, ["tokenizer", "--prompt-ids"]),
        ("a tokenizer that is not there", ["--sample", out, "--set", "data.tokenizer=gone"], MODEL, ["gone"]),
    ):
        refusal(train, folder, report, name, arguments, code, says)


def refusal(train, folder, report, name, arguments, code, says, ranks=None):
    before = harness.tree(folder)
    result = run(folder, [train, *arguments], ranks)
    line = result.last_error_line()
    problems = [] if result.code == code else [f"exit code {result.code}, wanted {code}"]
    problems += [] if len(result.err.strip().split("\n")) == 1 else ["more than one line"]
    problems += [f"the line lacks {word!r}" for word in says if word not in line]
    problems += [] if harness.tree(folder) == before and result.out == "" else ["something was written"]
    report.case(name, problems, result)


def evaluate_refusals(train, folder, out, report):
    step = out / "checkpoints" / "step-3"
    (folder / "empty").mkdir()
    (folder / "one.txt").write_text("a")
    (folder / "there.bin").write_text("mine")
    (folder / "ids.npy").write_bytes(b"\x93NUMPY\x01\x00" + bytes(100))
    shutil.copytree(step, folder / "step-4")
    shutil.copytree(step, folder / "damaged")
    data = next((folder / "damaged").glob("rank-*"), None) or sorted((folder / "damaged").iterdir())[-1]
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    for name, arguments, code, says in (
        ("no such run", ["--evaluate", "gone"], CHECKPOINT, ["no such folder", "gone"]),
        ("a folder without a checkpoint", ["--evaluate", "empty"], CHECKPOINT, ["no checkpoint", "empty"]),
        ("a file for a run", ["--evaluate", "val.txt"], CHECKPOINT, ["no folder", "val.txt"]),
        ("an empty name", ["--evaluate", ""], USAGE, ["--evaluate"]),
        ("a damaged checkpoint", ["--evaluate", "damaged", "val.txt"], CHECKPOINT, ["damaged"]),
        ("a checkpoint under another name", ["--evaluate", "step-4", "val.txt"], CHECKPOINT, ["step-4"]),
        ("no such text", ["--evaluate", out, "gone.txt"], DATASET, ["gone.txt"]),
        ("a text of one token", ["--evaluate", out, "one.txt"], DATASET, ["1 tokens", "one.txt"]),
        ("a file of another kind", ["--evaluate", out, "ids.npy"], DATASET, ["ids.npy"]),
        ("logits over a file", ["--evaluate", out, "val.txt", "--logits", "there.bin"], CANNOT_CREATE, ["there.bin", "exists"]),
        ("logits in no folder", ["--evaluate", out, "val.txt", "--logits", "gone/l.bin"], CANNOT_CREATE, ["gone/l.bin"]),
        ("logits of nothing", ["tiny.toml", "--logits", "l.bin"], USAGE, ["--logits is an option of train evaluate"]),
        ("evaluate and resume", ["--evaluate", out, "--resume", "latest"], USAGE, ["--resume"]),
        ("evaluate and a dry run", ["--evaluate", out, "--dry-run"], USAGE, ["--dry-run"]),
        ("another model", ["--evaluate", step, "val.txt", "--set", "model.layers=3"], CHECKPOINT, ["another model"]),
        ("final weights of another model", ["--evaluate", out, "val.txt", "--set", "model.layers=3"], MODEL, ["not the weights of this model", "blocks.2"]),
        ("a key that is none", ["--evaluate", out, "--set", "train.micro_batches=3"], CONFIG, ["train.micro_batch"]),
        ("no communication", ["--evaluate", out, "--set", "comm.transport=null"], CONFIG, ["no results"]),
        ("a window that is too long", ["--evaluate", out, "--set", "train.sequence=17"], CONFIG, ["model.context"]),
    ):
        refusal(train, folder, report, name, arguments, code, says)
    refusal(train, folder, report, "logits over a file, on two ranks", ["--evaluate", out, "val.txt", "--logits", "there.bin"], CANNOT_CREATE,
            ["there.bin"], ranks=2)


def tokenizer_cases(train, report):
    """The same weights as of the token file, at one and two ranks; documents end as there; the default vocabulary is the tokenizer's."""
    with tempfile.TemporaryDirectory(prefix="inference.") as scratch:
        folder = pathlib.Path(scratch)
        config = tiny_run.write_files(folder)
        text = tiny_run.corpus_text(9000)
        (folder / "texts").mkdir()
        for i in range(3):
            (folder / "texts" / f"{i}.txt").write_text(text[3000 * i:3000 * (i + 1)])
        for name in ("gpt2", "llama3", "llama2"):
            vocab = 1 + max(json.loads((TOKENIZERS / name / "tokenizer.json").read_text())["model"]["vocab"].values())
            vocab = max([vocab] + [t["id"] + 1 for t in json.loads((TOKENIZERS / name / "tokenizer.json").read_text())["added_tokens"]])
            made = run(folder, [train, "--tokenize", TOKENIZERS / name, "texts", "--out", f"{name}.bin"])
            common = {"train__deterministic": "true", "train__steps": 2}
            tokens = run(folder, [train, config, *tiny_run.options(**common, data__kind="tokens", data__train=f"{name}.bin", model__vocab=vocab,
                                                                   run__dir=f"tokens-{name}")])
            texts = [run(folder, [train, config, *tiny_run.options(**common, data__train="texts", data__tokenizer=TOKENIZERS / name / part,
                                                                   run__dir=f"text-{name}-{ranks}")], ranks)
                     for ranks, part in ((None, ""), (2, "tokenizer.json"))]
            wanted = harness.weights_hash(tokens.out) if made.code == 0 else None
            problems = [] if wanted and [harness.weights_hash(t.out) for t in texts] == [wanted, wanted] else ["other weights than of the token file"]
            sampled = next((line for line in texts[0].out.splitlines() if line.startswith("sample: ")), "")
            problems += [] if sampled and not re.fullmatch(r"sample: [\d ]+", sampled) else ["the sample is no text"]
            report.case(f"text through {name}", problems, "\n".join(map(str, [made, tokens, *texts])))
        # Goes on where it was stopped, with the tokenizer somewhere else, as if it had not been.
        shutil.copytree(TOKENIZERS / "gpt2", folder / "moved")
        common = {"train__deterministic": "true", "data__train": "texts", "checkpoint__every": 1, "checkpoint__keep": 0}
        whole = run(folder, [train, config, *tiny_run.options(**common, data__tokenizer=TOKENIZERS / "gpt2", run__dir="whole")])
        rest = run(folder, [train, config, *tiny_run.options(**common, data__tokenizer="moved", run__dir="rest"),
                            "--resume", folder / "whole" / "checkpoints" / "step-2"])
        wanted = harness.weights_hash(whole.out)
        problems = [] if wanted and harness.weights_hash(rest.out) == wanted and "changed" not in rest.out else ["another run than without a break"]
        (folder / "texts" / "1.txt").write_text(text[3000:6000][::-1])
        other = run(folder, [train, config, *tiny_run.options(**common, data__tokenizer="moved", run__dir="other"),
                             "--resume", folder / "whole" / "checkpoints" / "step-2"])
        problems += [] if other.code == CONFIG or "other data" in other.out else ["other text is not noticed"]
        report.case("a run through a tokenizer goes on", problems, "\n".join(map(str, [whole, rest, other])))
        broken = folder / "broken"
        broken.mkdir()
        (broken / "tokenizer.json").write_text("{")
        (folder / "latin1.txt").write_bytes(b"caf\xe9 " * 500)
        tiny = [config, *tiny_run.options(data__tokenizer=TOKENIZERS / "gpt2")]
        for name, arguments, code, says in (
            ("no such tokenizer", [config, *tiny_run.options(data__tokenizer="gone")], MODEL, ["gone"]),
            ("a broken tokenizer", [config, *tiny_run.options(data__tokenizer="broken")], MODEL, ["broken/tokenizer.json"]),
            ("a vocabulary that is too small", [*tiny, *tiny_run.options(model__vocab=100)], CONFIG, ["model.vocab", "set model.vocab to"]),
            ("a prompt that is not UTF-8", [*tiny, *tiny_run.options(run__sample_prompt="caf\udce9")], CONFIG, ["run.sample_prompt", "UTF-8"]),
            ("a prompt that the model does not know", [config, *tiny_run.options(data__tokenizer=TOKENIZERS / "gpt2", data__kind="tokens",
                                                                                 data__train="gpt2.bin", model__vocab=300, run__sample_prompt="In the beginning")],
             CONFIG, ["run.sample_prompt", "outside the vocabulary"]),
            ("a text that is not UTF-8", [*tiny, *tiny_run.options(data__train="latin1.txt")], DATASET, ["latin1.txt", "byte 3"]),
        ):
            refusal(train, folder, report, name, arguments, code, says)


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="inference.") as scratch:
        folder = pathlib.Path(scratch)
        out = trained(train, folder)
        evaluate_cases(train, folder, out, report)
        evaluate_refusals(train, folder, out, report)
        sample_cases(train, folder, out, report)
        sample_refusals(train, folder, out, report)
    ended_cases(train, report)
    folder_cases(train, report)
    tokenizer_cases(train, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
