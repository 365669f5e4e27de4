#!/usr/bin/env python3
"""A key's text is compared with its choices alone: `config.shard.units == "blocks"` would never hold, and no compiler says so.
Usage: choices_test.py SOURCE_ROOT   (or --self-test)"""

import pathlib
import re
import sys
import tempfile

KEY = re.compile(r'"([a-z_]+\.[a-z_0-9]+)",\s*\[\]\(Config& \w+\) -> ConfigSlot \{[^}]*\},\s*any,\s*"([^"]*)"')
COMPARED = re.compile(r'\.([a-z_]+\.[a-z_0-9]+) (?:==|!=) "([^"]*)"')
FOLDERS = ("model", "bench", "tests")


def sources(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".cpp", ".h"):
                yield path, path.read_text()


def check(root):
    """Lines about comparisons that never hold, and how many there are of those that may."""
    texts = list(sources(root))
    choices = {key: [choice.split(":")[0] for choice in listed.split("|")]
               for path, text in texts if path.name.startswith("config_keys") for key, listed in KEY.findall(text) if listed}
    problems, count = [], 0
    for path, text in texts:
        for match in COMPARED.finditer(text):
            key, literal = match.groups()
            if key not in choices:
                continue
            count += 1
            if literal.split(":")[0] not in choices[key]:
                line = text.count("\n", 0, match.start()) + 1
                problems.append(f'{path.relative_to(root)}:{line}: {key} is never "{literal}": it is one of {", ".join(choices[key])}')
    return problems, count


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "model").mkdir()
        (root / "model" / "config_keys.cpp").write_text(
            'ConfigKey{"shard.units", [](Config& c) -> ConfigSlot { return &c.shard.units; }, any, "block|disk:FOLDER", "",\n')
        (root / "model" / "a.cpp").write_text('if (c.shard.units == "block" || c.shard.units != "disk" || c.shard.units == "blocks") {}\n')
        wanted = (['model/a.cpp:1: shard.units is never "blocks": it is one of block, disk'], 3)
        return 0 if check(root) == wanted else f"found {check(root)}, expected {wanted}"


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    problems, count = check(pathlib.Path(sys.argv[1]))
    print("\n".join(problems) or f"{count} comparisons of keys with their choices")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
