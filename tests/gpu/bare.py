#!/usr/bin/env python3
"""Runs a command as on a machine that has none of what a bundle packs: in a mount namespace of its own, where the bundle's packages, and
the libraries that came with them, are taken out of /usr, and ssh too. Needs root, overlay file systems and those packages; 77 where they are not there.
Usage: bare.py BUNDLE COMMAND..."""

import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import packing  # noqa: E402, beside this file

SKIPPED = 77
HIDE = """set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/new" "$1/work"
mount -t overlay overlay -o "lowerdir=/usr,upperdir=$1/new,workdir=$1/work" /usr"""
RUN = HIDE + """
xargs -d '\\n' rm -f < "$2"
shift 2
exec "$@" """


def hidden_files(bundle):
    """What is taken away, as paths below /usr: /lib leads there. mpirun must not need ssh either."""
    listed = subprocess.run(["dpkg", "-L", *packing.PACKAGES], capture_output=True, text=True, check=True).stdout.splitlines()
    packed = (bundle / "packed").read_text().splitlines()
    return sorted({name for name in [*listed, *packed, "/usr/bin/ssh", "/usr/bin/rsh"] if name.startswith("/usr/") and not os.path.isdir(name)})


def is_possible(scratch):
    if os.geteuid() != 0 or subprocess.run(["sh", "-c", 'dpkg -L "$@"', "sh", *packing.PACKAGES], capture_output=True).returncode != 0:
        return False
    return subprocess.run(["unshare", "-m", "sh", "-c", HIDE, "sh", str(scratch)], capture_output=True).returncode == 0


def command(bundle, scratch, words):
    """`words` made a command that runs so. `scratch`: an empty folder, which stays empty."""
    listing = scratch.with_name(scratch.name + ".hidden")
    listing.write_text("\n".join(hidden_files(bundle)))
    return ["unshare", "-m", "sh", "-c", RUN, "sh", str(scratch), str(listing), *words]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder, "over")
        scratch.mkdir()
        if not is_possible(scratch):
            print("skipped: no root, no overlay file systems, or not the packages")
            sys.exit(SKIPPED)
        sys.exit(subprocess.run(command(pathlib.Path(sys.argv[1]).resolve(), scratch, sys.argv[2:])).returncode)


if __name__ == "__main__":
    main()
