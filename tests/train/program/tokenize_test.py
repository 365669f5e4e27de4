#!/usr/bin/env python3
"""`train --tokenize` writes the token file that its page promises, a run reads it, and what goes wrong ends with one line, the right exit code and
nothing left. Usage: tokenize_test.py TRAIN"""

import json
import pathlib
import struct
import sys
import tempfile

import harness
import tiny_run

LIMIT_S = 60
TOKENIZERS = harness.ROOT / "tests" / "data" / "tokenizers"
USAGE, DATASET, MODEL, CANNOT_CREATE = 64, 65, 67, 73


def expected(name, texts):
    """Ids of texts of the committed cases."""
    rows = {row["text"]: row["ids"] for row in json.loads((TOKENIZERS / name / "expected.json").read_text())}
    return [rows[text] for text in texts]


def tokenize(train, folder, *arguments, env=None):
    return harness.run([train, "--tokenize", *arguments], LIMIT_S, cwd=folder, env=env or {"OMP_NUM_THREADS": "3"})


def narrow(path):
    data = path.read_bytes()
    return list(struct.unpack(f"<{len(data) // 2}H", data))


def run_documents(train, report):
    """Files in the order of the command line, folders in that of the paths, an end-of-text token between documents."""
    texts = ["In the beginning God created the heaven and the earth.", "naïve café Ünïcödé ß ſ İ ı", "trailing spaces   "]
    for name, end in (("gpt2", 0), ("llama3", 1), ("llama2", 2), ("metaspace", None)):
        with tempfile.TemporaryDirectory(prefix="tokenize.") as scratch:
            folder = pathlib.Path(scratch)
            (folder / "books").mkdir()
            (folder / "z.txt").write_text(texts[0], newline="")
            (folder / "empty.txt").write_text("")
            (folder / "books" / "b.txt").write_text(texts[2], newline="")
            (folder / "books" / "a.txt").write_text(texts[1], newline="")
            result = tokenize(train, folder, TOKENIZERS / name, "z.txt", "empty.txt", "books", "z.txt", "--out", "out.bin")
            wanted = []
            for ids in expected(name, [texts[0], texts[1], texts[2], texts[0]]):
                wanted += ([end] if wanted and end is not None else []) + ids
            found = narrow(folder / "out.bin") if result.code == 0 else []
            problems = [] if result.code == 0 else [f"exit code {result.code}"]
            # A tokenizer that puts a token before each text puts one before an empty text, which is no document.
            problems += [] if found == wanted else [f"ids {found[:40]}, wanted {wanted[:40]}"]
            problems += [] if f"out.bin: {len(wanted)} tokens (uint16) of 5 files" in result.out else ["the line says something else"]
            report.case(f"documents with {name}", problems, result)


def llmc(path):
    """Ids of a file with llm.c's header for uint16."""
    data = path.read_bytes()
    magic, version, count = struct.unpack_from("<3i", data)
    return list(struct.unpack(f"<{count}H", data[1024:])) if (magic, version, 2 * count) == (20240520, 1, len(data) - 1024) else None


def run_many(train, report):
    """More files than threads have room for come out in order. With one token each they look like 32-bit integers, so they have a header."""
    a = expected("gpt2", ["a" * 300])[0][0]
    for name, length, read in (("many files", lambda i: i % 7 + 1, narrow), ("many files of one token", lambda i: 1, llmc)):
        with tempfile.TemporaryDirectory(prefix="tokenize.") as scratch:
            folder = pathlib.Path(scratch)
            (folder / "in").mkdir()
            wanted = []
            for i in range(300):
                (folder / "in" / f"{i:03}.txt").write_text("a" * length(i))
                wanted += ([0] if i else []) + [a] * length(i)
            result = tokenize(train, folder, TOKENIZERS / "gpt2", "in", "--out", "out.bin")
            problems = [] if result.code == 0 and read(folder / "out.bin") == wanted else ["the ids are not those of 300 files"]
            report.case(name, problems, result)


def wide_tokenizer(folder):
    """A vocabulary of more than 65536 ids: "zq" is the last."""
    document = json.loads((TOKENIZERS / "gpt2" / "tokenizer.json").read_text())
    vocab = document["model"]["vocab"]
    vocab.update({f"<{i}>": i for i in range(len(vocab), 70000)})
    vocab["zq"] = 70000
    document["model"]["merges"].append("z q")
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(document))


def run_wide(train, report):
    with tempfile.TemporaryDirectory(prefix="tokenize.") as scratch:
        folder = pathlib.Path(scratch)
        wide_tokenizer(folder / "wide")
        (folder / "a.txt").write_text("zqzq")
        result = tokenize(train, folder, "wide", "a.txt", "--out", "out.bin")
        wanted = struct.pack("<256i", 20240801, 7, 2, *[0] * 253) + struct.pack("<2I", 70000, 70000)
        problems = [] if result.code == 0 and (folder / "out.bin").read_bytes() == wanted else ["the file is not llm.c's of uint32"]
        report.case("a vocabulary of more than 65536", problems, result)


def run_training(train, report):
    with tempfile.TemporaryDirectory(prefix="tokenize.") as scratch:
        folder = pathlib.Path(scratch)
        config = tiny_run.write_files(folder)
        result = tokenize(train, folder, TOKENIZERS / "llama3", "corpus.txt", "--out", "corpus.bin")
        if result.code == 0:
            sets = tiny_run.options(data__kind='"tokens"', data__train='"corpus.bin"', model__vocab="432", run__sample_tokens="0")
            result = harness.run([train, config, *sets], LIMIT_S, cwd=folder)
        report.case("a run reads the file", [] if result.code == 0 else [f"exit code {result.code}"], result)


def broken(folder):
    (folder / "odd").mkdir()
    document = json.loads((TOKENIZERS / "gpt2" / "tokenizer.json").read_text())
    document["normalizer"] = {"type": "Lowercase"}
    (folder / "odd" / "tokenizer.json").write_text(json.dumps(document))
    (folder / "none").mkdir()
    (folder / "cut").mkdir()
    (folder / "cut" / "tokenizer.json").write_text('{"model": {')


def run_refusals(train, report):
    good = str(TOKENIZERS / "gpt2")
    for name, arguments, code, says in (
        ("a setting that is not supported", ["odd", "a.txt", "--out", "o.bin"], MODEL, ["normalizer.type = Lowercase", "odd/tokenizer.json"]),
        ("a folder without a tokenizer", ["none", "a.txt", "--out", "o.bin"], MODEL, ["tokenizer.json", "tokenizer.model", "(none)"]),
        ("no folder at all", ["nowhere", "a.txt", "--out", "o.bin"], MODEL, ["nowhere"]),
        ("a tokenizer cut off", ["cut", "a.txt", "--out", "o.bin"], MODEL, ["not valid JSON", "cut/tokenizer.json"]),
        ("no text named", [good, "--out", "o.bin"], USAGE, ["without a text"]),
        ("no output named", [good, "a.txt"], USAGE, ["--out"]),
        ("a text that is not there", [good, "gone.txt", "--out", "o.bin"], DATASET, ["gone.txt"]),
        ("a text that is not UTF-8", [good, "a.txt", "latin1.txt", "--out", "o.bin"], DATASET, ["UTF-8", "latin1.txt", "byte 3"]),
        ("nothing in the texts", [good, "empty.txt", "--out", "o.bin"], DATASET, ["no tokens"]),
        ("the text itself as output", [good, "a.txt", "--out", "a.txt"], CANNOT_CREATE, ["the file exists", "a.txt"]),
        ("a folder as output", [good, "a.txt", "--out", "."], CANNOT_CREATE, ["a folder has this name"]),
        ("a device as output", [good, "a.txt", "--out", "/dev/null"], CANNOT_CREATE, ["no link, pipe or device"]),
        ("an output that cannot be", [good, "a.txt", "--out", "gone/o.bin"], CANNOT_CREATE, ["gone/o.bin"]),
    ):
        with tempfile.TemporaryDirectory(prefix="tokenize.") as scratch:
            folder = pathlib.Path(scratch)
            broken(folder)
            (folder / "a.txt").write_text("text")
            (folder / "latin1.txt").write_bytes(b"caf\xe9 ")
            (folder / "empty.txt").write_text("")
            result = tokenize(train, folder, *arguments)
            line = result.last_error_line()
            problems = [] if result.code == code else [f"exit code {result.code}, wanted {code}"]
            problems += [] if len(result.err.strip().split("\n")) == 1 else ["more than one line"]
            problems += [f"the line lacks {word!r}" for word in says if word not in line]
            problems += [f"{path.name} is left" for path in folder.glob("o.bin*")]
            problems += [] if (folder / "a.txt").read_text() == "text" else ["the text is gone"]
            report.case(name, problems, result)


def run_misplaced(train, report):
    with tempfile.TemporaryDirectory(prefix="tokenize.") as scratch:
        config = tiny_run.write_files(scratch)
        for arguments, says in ((["--out", "o.bin"], "--out is an option of train "), (["more.toml"], "more.toml")):
            result = harness.run([train, config, *arguments], LIMIT_S, cwd=scratch)
            problems = [] if result.code == USAGE and says in result.last_error_line() else [f"exit code {result.code}"]
            report.case(f"{arguments[0]} without --tokenize", problems, result)
        result = harness.run(harness.mpirun(2, [train, "--tokenize", TOKENIZERS / "gpt2", "corpus.txt", "--out", "o.bin"]), LIMIT_S, cwd=scratch)
        problems = [] if result.code == USAGE and "leave out mpirun" in result.err else [f"exit code {result.code}"]
        report.case("several ranks", problems, result)


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    report = harness.Report()
    run_documents(train, report)
    run_many(train, report)
    run_wide(train, report)
    run_training(train, report)
    run_refusals(train, report)
    run_misplaced(train, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
