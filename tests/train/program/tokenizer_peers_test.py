#!/usr/bin/env python3
"""Ids of real and of random text are those of PyPI's `tokenizers` and `sentencepiece`, tokenizer by tokenizer, where $ZSHARD_PEER_PYTHON (or this
Python) has them; exit 77 where not. Usage: tokenizer_peers_test.py TRAIN [BYTES]   (BYTES of each text: 1 MB)"""

import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

import harness

LIMIT_S = 300
TOKENIZERS = harness.ROOT / "tests" / "data" / "tokenizers"
# Runs in the Python that has the packages: folder, files; prints a list of ids for each file.
PEER = """
import json, pathlib, sys
folder, files = pathlib.Path(sys.argv[1]), sys.argv[2:]
texts = [pathlib.Path(name).read_bytes().decode() for name in files]
if (folder / "tokenizer.json").exists():
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    print(json.dumps([tokenizer.encode(text).ids for text in texts]))
else:
    import sentencepiece
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    print(json.dumps([tokenizer.encode(text) for text in texts]))
"""
PIECES = [" ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "don't", "123", "4567", "the", " God", "aaaa", "e\u0301", "\u0301", "\u00bd", "\u2167", "ß", "\u017f", "\u212a",
          "\u180e", "\u0085", "\u200d", "\u3000", "\u2581", "_", "...", "(x)", "<s>", "<|endoftext|>", "one", "RR", "  l", "\U0001F44D\U0001F3FD", "中文", "한"]


def characters():
    """What every Unicode from 5.2 on has the same: assigned in 3.2, and in the category that it has today."""
    old = unicodedata.ucd_3_2_0
    everything = (chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000)
    return [c for c in everything if old.category(c) not in ("Cn", "Co") and old.category(c) == unicodedata.category(c)]


def random_text(size, seed):
    source, pool, text, length = random.Random(seed), characters(), [], 0
    while length < size:
        kind = source.random()
        piece = source.choice(PIECES) if kind < 0.4 else source.choice(pool) if kind < 0.6 else "".join(source.choices("abcdefgh the", k=5))
        text.append(piece)
        length += len(piece.encode())
    return "".join(text)


def first_difference(ours, theirs):
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    return f"{len(ours)} ids, theirs {len(theirs)}; from {at} on {ours[at:at + 8]}, theirs {theirs[at:at + 8]}"


def compare(train, python, folder, files, scratch):
    peer = subprocess.run([python, "-c", PEER, folder, *files], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    if peer.returncode != 0:
        return [f"the peer fails: {peer.stderr.strip()[-300:]}"], None
    problems, result = [], None
    for name, theirs in zip(files, json.loads(peer.stdout)):
        out = scratch / "out.bin"
        result = harness.run([train, "--tokenize", folder, name, "--out", out], LIMIT_S, cwd=scratch)
        if result.code != 0:
            return [f"exit code {result.code} for {name.name}"], result
        data = out.read_bytes()
        ours = list(struct.unpack(f"<{len(data) // 2}H", data))
        problems += [] if ours == theirs else [f"{name.name}: {first_difference(ours, theirs)}"]
    return problems, result


def main():
    train, size = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    python = os.environ.get("ZSHARD_PEER_PYTHON", sys.executable)
    looked = subprocess.run([python, "-c", "import tokenizers, sentencepiece"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if looked.returncode != 0:
        print(f"skipped: {python} has no tokenizers and sentencepiece: set ZSHARD_PEER_PYTHON to one that has ({looked.stderr.strip().splitlines()[-1]})")
        return harness.SKIP
    harness.become_subreaper()
    report = harness.Report()
    bible = subprocess.run(["bible", "-f", "Genesis1:1-Revelation22:21"], stdin=subprocess.DEVNULL, capture_output=True).stdout
    with tempfile.TemporaryDirectory(prefix="tokenizer_peers.") as name:
        scratch = pathlib.Path(name)
        files = [scratch / "real.txt", scratch / "random.txt"]
        files[0].write_bytes(bible.decode("ascii", "ignore").encode()[:size])
        files[1].write_bytes(random_text(size, 1).encode())
        for folder in sorted(path for path in TOKENIZERS.iterdir()):
            problems, result = compare(train, python, folder, files, scratch)
            report.case(folder.name, problems, result)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
