#!/usr/bin/env python3
"""Writes the evaluation tasks beside it: sums and plural forms, which a model writes, and the order of the Bible's books and the ends of sentences, of which it
chooses one. `edges` and `bare` have what is special: white space at a prompt's end, prompts that are empty or too long, choices that are not ASCII.
Usage: make_tasks.py"""

import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
BOOKS = """Genesis Exodus Leviticus Numbers Deuteronomy Joshua Judges Ruth Ezra Nehemiah Esther Job Psalms Proverbs Isaiah Jeremiah Lamentations Ezekiel Daniel
Hosea Joel Amos Obadiah Jonah Micah Nahum Habakkuk Zephaniah Haggai Zechariah Malachi Matthew Mark Luke John Acts Romans""".split()
AFTER = {"Ruth": "1 Samuel", "Romans": "1 Corinthians"}
PLURALS = """child children|man men|woman women|foot feet|tooth teeth|ox oxen|sheep sheep|wolf wolves|loaf loaves|city cities|house houses|brother brothers|
box boxes|leaf leaves|knife knives|mouse mice|goose geese|day days|lily lilies|prophet prophets|king kings|wife wives|church churches|calf calves""".replace("\n", "")
SENTENCES = """In the beginning God created the|heaven and the earth.|sword of the king.|seven years of corn.
And God said, Let there be|light.|silver.|mice.
The LORD is my shepherd; I shall not|want.|bread.|six.
Man shall not live by bread|alone.|horses.|sang.
The sun rises in the|east.|spoon.|seldom.
A dog has four|legs.|wings.|rivers.
Water freezes to|ice.|fire.|song.
Ask, and it shall be|given you.|the red door.|under wheat.
Seek, and ye shall|find.|chair.|green.
Blessed are the|meek.|of of.|was.
We drink water when we are|thirsty.|wooden.|Tuesday.
A year has twelve|months.|noses.|lambs.
Bees make|honey.|iron.|letters.
The night is dark, and the day is|bright.|a cup.|eaten.
Snow is white, and grass is|green.|loud.|slept.
He opened the door with a|key.|cloud.|why.
Fish swim in the|sea.|lamp.|nine.
She wrote the letter with a|pen.|hill.|never.
Bread is made of|flour.|glass.|sleep.
An hour has sixty|minutes.|oceans.|cows.
Birds build|nests.|salt.|verbs.
Winter is cold, and summer is|warm.|a fork.|walked.
Three and four are|seven.|horse.|open.
The moon shines at|night.|brick.|sugar."""


def choices_of(right, others, place):
    """The right one among the others, at `place`."""
    choices = list(others)
    choices.insert(place, right)
    return {"choices": choices, "answer": place}


def arithmetic():
    for i in range(36):
        a, b = 7 * i % 20 + 1, 11 * i % 17 + 2
        yield {"prompt": f"{a}+{b}=", "answer": str(a + b), "until": ["\n", " "], "max_tokens": 8}


def books():
    for i, book in enumerate(BOOKS[:-1]):
        right = AFTER.get(book, BOOKS[i + 1])
        others = [BOOKS[(i + 7) % len(BOOKS)], BOOKS[(i + 16) % len(BOOKS)], BOOKS[(i + 23) % len(BOOKS)]]
        yield {"prompt": f"In the Bible the book after {book} is", **choices_of(right, others, 3 * i % 4)}


def plurals():
    for pair in PLURALS.split("|"):
        one, many = pair.split()
        yield {"prompt": f"one {one}, two", "answer": f" {many}", "until": ",", "max_tokens": 12}


def completions():
    for i, line in enumerate(SENTENCES.split("\n")):
        prompt, right, *others = line.split("|")
        yield {"prompt": prompt, **choices_of(right, others, 2 * i % 3)}


def edges():
    long = " ".join(f"and {i} begat {i + 1}" for i in range(60))
    for prompt in ("The end  ", "The end\n", "", long, long + " \n "):
        yield {"prompt": prompt, "choices": ["of all", "ἀρχή", "é", "a far longer choice than the others are, so that length counts"], "answer": 1}
    yield {"prompt": "The end", "choices": ["日本語", ":"], "answer": 1}  # by bytes the first, by characters the second


def bare():
    for prompt in ("The end ", "The en", "", "x" * 700):
        yield {"prompt": prompt, "choices": ["d of all", "日本語", "z"], "answer": 2, "delimiter": ""}


def main():
    for make in (arithmetic, books, plurals, completions, edges, bare):
        (HERE / f"{make.__name__}.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in make()))


main()
