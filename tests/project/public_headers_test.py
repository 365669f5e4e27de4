#!/usr/bin/env python3
"""The public headers, model/zshard/: each says its contract, <zshard/zshard.h> includes all of them, and what `meson install` makes of them
compiles with nothing else on the compiler's path, without the heaviest headers of the standard library. What is marked ZSHARD_DEPRECATED goes away
with the version after that mark.
Usage: public_headers_test.py SOURCE_ROOT   (or --self-test)"""

import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "model" / "zshard"))
import install_headers  # noqa: E402

MOST = 18
CONTRACT = re.compile(r"^/// \\file zshard/\S+\n(///.+\n)+", re.M)
DEPRECATED = re.compile(r'^(?!#).*ZSHARD_DEPRECATED\((?:"(\d+)[.](\d+)", *"[^"]+"\))?', re.M)
HEAVY = ("chrono", "condition_variable", "filesystem", "fstream", "future", "iostream", "mutex", "random", "regex", "sstream", "thread")
# The library itself, and what it may be built on where it is installed.
OURS, FOREIGN = re.compile(r'#include "(?!zshard/)'), re.compile(r"#include <(?!fmt/)[^>]*/")


def problems_of_sources(root):
    public = {path.name: path.read_text() for path in sorted((root / install_headers.PUBLIC).glob("*.h"))}
    if len(public) > MOST:
        yield f"{len(public)} public headers, of at most {MOST}"
    for name, text in public.items():
        if not CONTRACT.search(text):
            yield f"{name} does not say its contract, behind \\file"
        if name != "zshard.h" and f'#include "{install_headers.PUBLIC}/{name}"' not in public["zshard.h"]:
            yield f"zshard.h does not include {name}"


def problems_of_deprecations(root):
    """Two numbers and what to use instead stand in each, and the version is the one of today."""
    version = tuple(map(int, re.search(r"version : '(\d+)[.](\d+)", (root / "meson.build").read_text()).groups()))
    for name, text in sorted(install_headers.headers(root).items()):
        for mark in DEPRECATED.finditer(re.sub(r"//.*", "", text)):
            if mark[1] is None:
                yield f"{name}: write ZSHARD_DEPRECATED(\"MAJOR.MINOR\", \"use ... instead\")"
            elif (int(mark[1]), int(mark[2])) != version:
                yield f"{name}: what is deprecated since {mark[1]}.{mark[2]} is not there any more in {version[0]}.{version[1]}: remove it, or correct the mark"


def problems_of_installed(folder):
    for path in sorted(folder.rglob("*.h")):
        for line in path.read_text().splitlines():
            if OURS.match(line) or FOREIGN.match(line):
                yield f"{path.relative_to(folder)}: {line}"
    done = subprocess.run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-I", str(folder), "-x", "c++", "-fsyntax-only", "-H", "-"],
                          input="#include <zshard/zshard.h>\n", capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        yield f"<zshard/zshard.h> does not compile from what is installed:\n{done.stderr[-2000:]}"
    for header in HEAVY:
        if re.search(rf"^\.+ /\S*/c\+\+/\d+/{header}$", done.stderr, re.M):
            yield f"<zshard/zshard.h> includes <{header}>"


def problems(root):
    yield from problems_of_sources(root)
    yield from problems_of_deprecations(root)
    with tempfile.TemporaryDirectory() as folder:
        install_headers.install(root, pathlib.Path(folder))
        yield from problems_of_installed(pathlib.Path(folder))


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {"model/zshard/zshard.h": '#pragma once\n/// \\file zshard/zshard.h\n/// All.\n#include "model/zshard/good.h"\n',
                           "model/zshard/good.h": '#pragma once\n/// \\file zshard/good.h\n/// Good.\n#include "comm/part.h"\n',
                           "comm/part.h": "#pragma once\n#include <vector>\ninline std::vector<int> numbers() { return {1}; }\n",
                           "comm/apart.h": "#error nobody includes this\n", "meson.build": "project('zshard', version : '0.2.1')\n"}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        assert list(problems(root)) == []
        names = {install_headers.installed_name(name) for name in install_headers.headers(root)}
        assert names == {"zshard/zshard.h", "zshard/good.h", "zshard/detail/comm/part.h"}, names
        (root / "model/zshard/lost.h").write_text("#pragma once\n")
        (root / "comm/part.h").write_text("#pragma once\n#include <toml++/toml.h>\nno_such_type numbers();\n")
        found = "\n".join(problems(root))
        for words in ("lost.h does not say", "does not include lost.h", "detail/comm/part.h: #include <toml++/toml.h>",
                      "does not compile from"):
            assert words in found, (words, found)
        (root / "comm/part.h").write_text("#pragma once\n#include <random>\n")
        assert "includes <random>" in "\n".join(problems(root))
        marks = '#include "model/job/version.h"\nZSHARD_DEPRECATED("0.{}", "use b()") inline int a() {{ return 1; }}\ninline int b() {{ return 2; }}\n'
        (root / "model/job").mkdir()
        (root / "model/job/version.h").write_text((HERE.parents[2] / "model/job/version.h").read_text())
        for since, wanted in ((2, []), (1, ["comm/part.h: what is deprecated since 0.1 is not there any more in 0.2: remove it, or correct the mark"])):
            (root / "comm/part.h").write_text("#pragma once\n" + marks.format(since))
            found = list(problems_of_deprecations(root))
            assert found == wanted, found
        (root / "comm/part.h").write_text("#pragma once\n" + marks.format(2).replace('"0.2", ', ""))
        assert "write ZSHARD_DEPRECATED" in "\n".join(problems_of_deprecations(root))
        (root / "comm/part.h").write_text("#pragma once\n" + marks.format(2) + "inline int old = a();\n")
        assert "since zshard 0.2: use b()" in "\n".join(problems(root)), list(problems(root))
        (root / "comm/part.h").write_text("#pragma once\n#define ZSHARD_NO_DEPRECATION_WARNINGS\n" + marks.format(2) + "inline int old = a();\n")
        assert "use b()" not in "\n".join(problems(root)), list(problems(root))


def main():
    if sys.argv[1] == "--self-test":
        self_test()
        return 0
    found = list(problems(pathlib.Path(sys.argv[1])))
    for problem in found:
        print(problem)
    print(f"{len(found)} problems with the public headers")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
