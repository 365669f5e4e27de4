"""A folder that runs wherever glibc is new enough, packed: zshard-VERSION-linux-MACHINE.tar.xz, for machines where nothing can be installed. bin/zshard
has no MPI, its ranks are threads of one process; bin/zshard-openmpi (or -mpich) has, and takes it from the machine. Libraries that are not glibc's
are in lib/. Usage: tarball.py BUILD OUT   (`./setup tarball` calls it)"""

import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

import manual

ROOT = pathlib.Path(__file__).resolve().parents[2]
OF_GLIBC = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|mvec))\.so")
README = """zshard {version}: sharded training of neural networks. It needs glibc {glibc} or later, which `ldd --version` shows, and nothing that is installed.

    bin/zshard train CONFIG.toml --set comm.ranks=4      four ranks, as threads of one process, on one machine
    mpirun -np 4 bin/{with_mpi} CONFIG.toml              ranks of this machine's {mpi}, on any number of machines

Examples are in share/doc/zshard/examples, pages in share/doc/zshard/docs, the manual is share/man/man1/zshard.1, bash's completion
share/bash-completion/completions/zshard. The libraries in lib/ are Debian's; share/doc/zshard/libraries has their licences.
"""


def answer(*command):
    return subprocess.run([str(word) for word in command], check=True, text=True, stdout=subprocess.PIPE).stdout


def needed(program):
    """Paths of the libraries that the program loads, without glibc's."""
    found = re.findall(r"^\s*(\S+) => (\S+) \(", answer("ldd", program), re.M)
    return {name: pathlib.Path(path) for name, path in found if not OF_GLIBC.match(name)}


def newest_glibc(files):
    versions = {tuple(map(int, text.split("."))) for path in files for text in re.findall(r"GLIBC_([0-9.]+)", answer("readelf", "-V", path))}
    return ".".join(map(str, max(versions)))


def licence(library, folder):
    """Debian's word on the library's authors and licence. The file of a package may be known by its path before /usr was merged."""
    real = library.resolve()
    for path in (real, str(real).removeprefix("/usr"), library):
        asked = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True)
        if asked.returncode == 0:
            package = asked.stdout.split(":")[0]
            shutil.copy2(f"/usr/share/doc/{package}/copyright", folder / package)
            return
    sys.exit(f"tarball.py: no package has {library}, whose licence must go with it")


def fill(tree, build, version):
    is_mpich = "mpich" in answer("ldd", build / "train")
    mpi, with_mpi = ("MPICH", "zshard-mpich") if is_mpich else ("Open MPI", "zshard-openmpi")
    programs, lib, doc = tree / "bin", tree / "lib", tree / "share/doc/zshard"
    for folder in (programs, lib, doc / "libraries"):
        folder.mkdir(parents=True)
    shutil.copy2(build / "zshard-threads", programs / "zshard")
    shutil.copy2(build / "train", programs / with_mpi)
    for name, path in needed(programs / "zshard").items():
        shutil.copy2(path.resolve(), lib / name)
        licence(path, doc / "libraries")
    files = [*programs.iterdir(), *lib.iterdir()]
    for path in files:
        path.chmod(0o755)
        subprocess.run(["strip", "--strip-unneeded", path], check=True)
    for path in programs.iterdir():
        subprocess.run(["patchelf", "--force-rpath", "--set-rpath", "$ORIGIN/../lib", path], check=True)
    for name in ("man/man1", "bash-completion/completions"):
        (tree / "share" / name).mkdir(parents=True)
    manual.write(programs / "zshard", tree / "share/man/man1/zshard.1", tree / "share/bash-completion/completions/zshard")
    shutil.copytree(ROOT / "docs", doc / "docs", ignore=shutil.ignore_patterns("Doxyfile"))
    shutil.copytree(ROOT / "model/configs", doc / "examples")
    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy2(ROOT / name, doc / name)
    tree.joinpath("README").write_text(README.format(version=version, glibc=newest_glibc(files), with_mpi=with_mpi, mpi=mpi))


def main():
    build, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    version = json.loads((build / "meson-info/intro-projectinfo.json").read_text())["version"]
    date = os.environ.get("SOURCE_DATE_EPOCH") or answer("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()
    name = f"zshard-{version}-linux-{platform.machine()}"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        fill(pathlib.Path(work, name), build, version)
        archive = out / f"{name}.tar.xz"
        answer("tar", "-C", work, "--sort=name", "--owner=0", "--group=0", "--numeric-owner", f"--mtime=@{date}", "-cJf", archive, name)
    print(archive)


if __name__ == "__main__":
    main()
