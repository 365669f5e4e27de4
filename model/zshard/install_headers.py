#!/usr/bin/env python3
"""Installs the public headers of this folder as zshard/NAME.h, and what they include, directly or not, as zshard/detail/PATH. Include lines become
those of the installed files, so that they are found by one folder on a compiler's path, and nobody else's header of the same name is.
Usage: install_headers.py SOURCE_ROOT INCLUDE_DIR   (run by `meson install`; INCLUDE_DIR is absolute, or below the prefix)"""

import os
import pathlib
import re
import sys

PUBLIC = "model/zshard"
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)


def installed_name(name):
    folder, _, file = name.rpartition("/")
    return f"zshard/{file}" if folder == PUBLIC else f"zshard/detail/{name}"


def headers(root):
    """By their names in the source tree: the public ones, and all that they include."""
    waiting = sorted(path.relative_to(root).as_posix() for path in (root / PUBLIC).glob("*.h"))
    texts = {}
    while waiting:
        name = waiting.pop()
        if name not in texts:
            texts[name] = (root / name).read_text()
            waiting += INCLUDE.findall(texts[name])
    return texts


def install(root, folder):
    for name, text in headers(root).items():
        path = folder / installed_name(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(INCLUDE.sub(lambda line: f'#include "{installed_name(line.group(1))}"', text))


def main():
    folder = pathlib.PurePath(sys.argv[2])
    if folder.is_absolute():
        folder = pathlib.Path(os.environ.get("DESTDIR") or "/", folder.relative_to("/"))
    else:
        folder = pathlib.Path(os.environ["MESON_INSTALL_DESTDIR_PREFIX"], folder)
    install(pathlib.Path(sys.argv[1]), folder)


if __name__ == "__main__":
    main()
