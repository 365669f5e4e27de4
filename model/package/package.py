"""Debian packages of a finished build: zshard (program and benchmarks), libzshard0, libzshard-dev, python3-zshard and zshard-doc. Dependencies are those that
dpkg-shlibdeps finds. Usage: package.py BUILD OUT   (`./setup package` calls it; BUILD was configured with prefix /usr)"""

import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import manual

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUMMARY = "sharded training of neural networks under MPI"
LONG = """ zshard trains models whose parameters, gradients and optimizer state are
 sharded over the ranks of an MPI job (ZeRO-3, fully sharded data parallel).
 It is written in C++ with tensors and autograd of its own."""
CONTROL = {
    "zshard": ("science", "Recommends: openmpi-bin", "program", " .\n This package has the program and its benchmarks."),
    "libzshard0": ("libs", "", "shared library", " .\n This package has the library that custom trainers need to run."),
    "libzshard-dev": ("libdevel", "", "headers and static library", " .\n This package has what custom trainers need to be compiled."),
    "python3-zshard": ("python", "Recommends: zshard", "Python module", " .\n This package has a Python module that reads runs and starts them."),
    "zshard-doc": ("doc", "", "documentation", " .\n This package has the pages and examples."),
}


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, text=True, **options)


def answer(*command, **options):
    return run(*command, stdout=subprocess.PIPE, **options).stdout.strip()


def compress(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file, gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=file, mtime=0) as packed:
        packed.write(text.encode())


def move(stage, tree, *patterns):
    """Moves what the patterns find from the staged installation into a package's tree. Each finds something."""
    for pattern in patterns:
        found = sorted(stage.glob(pattern))
        if not found:
            sys.exit(f"package.py: {pattern} was not installed: is the build complete?")
        for path in found:
            target = tree / path.relative_to(stage)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)


def add_program_files(tree):
    program = tree / "usr/bin/zshard"
    man, completion = tree / "zshard.1", tree / "usr/share/bash-completion/completions/zshard"
    completion.parent.mkdir(parents=True)
    manual.write(program, man, completion)
    compress(tree / "usr/share/man/man1/zshard.1.gz", man.read_text())
    man.unlink()
    examples = tree / "usr/share/doc/zshard/examples"
    shutil.copytree(ROOT / "model/configs", examples)


def add_benchmarks(build, tree):
    folder = tree / "usr/lib/zshard"
    folder.mkdir(parents=True)
    for name in ("bench_kernels", "bench_collectives", "bench_step", "bench_overlap"):
        shutil.copy2(build / name, folder / name)


def add_pages(tree):
    doc = tree / "usr/share/doc/zshard-doc"
    shutil.copytree(ROOT / "docs", doc / "docs", ignore=shutil.ignore_patterns("Doxyfile"))
    shutil.copy2(ROOT / "README.md", doc / "README.md")


def strip(tree):
    for path in sorted(tree.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        with open(path, "rb") as file:
            magic = file.read(8)
        if magic[:4] == b"\x7fELF":
            run("strip", "--strip-unneeded", "--remove-section=.comment", "--remove-section=.note", path)
        elif magic == b"!<arch>\n":
            run("strip", "--strip-debug", path)


def depends(package, tree, architecture):
    """What dpkg-shlibdeps finds for the package's programs and libraries."""
    files = [path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF"]
    if not files:
        return ""
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work, "debian")
        folder.mkdir()
        folder.joinpath("control").write_text(f"Source: zshard\n\nPackage: {package}\nArchitecture: {architecture}\n")
        done = subprocess.run(["dpkg-shlibdeps", "-O", *[f"-e{path}" for path in files]], cwd=work, capture_output=True, text=True)  # it warns of what is right
    if done.returncode != 0:
        sys.exit(f"package.py: {package}: {done.stderr.strip()}")
    text = done.stdout.strip()
    return text.split("=", 1)[1]


def packages_of_modules(tree, line):
    """Development packages of the modules that a line of the pkg-config file names: `Requires: `, what headers include; `static_modules=`, what
    libzshard.a is linked with beside oneDNN, which has no module."""
    text = next(tree.rglob("zshard.pc")).read_text()
    modules = re.search(rf"^{re.escape(line)}(.+)$", text, re.M).group(1).replace(" ", "").split(",")
    files = [os.path.realpath(f"{answer('pkg-config', '--variable=pcfiledir', module)}/{module}.pc") for module in modules]
    return sorted({answer("dpkg", "-S", file).split(":")[0] for file in files})


def python_versions(tree):
    """The one version of Python that the module is for."""
    major, minor = re.search(r"cpython-(\d)(\d+)", next(tree.rglob("_zshard*.so")).name).groups()
    return f"python3 (>= {major}.{minor})", f"python3 (<< {major}.{int(minor) + 1})"


def notes(package, tree, version, date):
    doc = tree / "usr/share/doc" / package
    doc.mkdir(parents=True, exist_ok=True)
    maintainer = "zshard developers <zshard@localhost>"
    doc.joinpath("copyright").write_text(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: zshard\n\nFiles: *\n"
        "Copyright: 2026 zshard's developers\nLicense: Apache-2.0\n On Debian systems the full text is in /usr/share/common-licenses/Apache-2.0.\n")
    compress(doc / "changelog.gz", f"zshard ({version}) unstable; urgency=medium\n\n  * What is new stands in CHANGELOG.md of the source.\n\n -- {maintainer}  {date}\n")
    return maintainer


def make(package, tree, out, version, architecture, date):
    section, more, what, long_end = CONTROL[package]
    maintainer = notes(package, tree, version, date)
    fields = [f"Package: {package}", f"Version: {version}", f"Architecture: {architecture}", f"Maintainer: {maintainer}", f"Section: {section}", "Priority: optional"]
    needed = depends(package, tree, architecture)
    if package == "libzshard-dev":
        needed = ", ".join([f"libzshard0 (= {version})", *packages_of_modules(tree, "Requires: ")])
        more = "Suggests: " + ", ".join(["libdnnl-dev", *packages_of_modules(tree, "static_modules=")])
    if package == "python3-zshard":
        needed = ", ".join([needed, *python_versions(tree), "python3-numpy"])
    fields += [f"Depends: {needed}"] if needed else []
    fields += [more] if more else []
    fields += [f"Installed-Size: {sum(p.lstat().st_size for p in tree.rglob('*') if p.is_file()) // 1024 + 1}", f"Description: {SUMMARY} - {what}", LONG, long_end]
    control = tree / "DEBIAN"
    control.mkdir()
    files = sorted(p for p in tree.rglob("*") if p.is_file() and not p.is_symlink() and control not in p.parents)
    control.joinpath("md5sums").write_text("".join(f"{answer('md5sum', p).split()[0]}  {p.relative_to(tree)}\n" for p in files))
    control.joinpath("control").write_text("\n".join(fields) + "\n")
    if package == "libzshard0":
        control.joinpath("triggers").write_text("activate-noawait ldconfig\n")
        control.joinpath("shlibs").write_text(f"libzshard 0 libzshard0 (>= {version})\n")
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            is_program = path.is_file() and ("usr/bin" in str(path) or "usr/lib/zshard" in str(path))
            path.chmod(0o755 if path.is_dir() or is_program else 0o644)
    name = out / f"{package}_{version}_{architecture}.deb"
    run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, name, stdout=subprocess.DEVNULL)
    return name


def main():
    build, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    version = json.loads((build / "meson-info/intro-projectinfo.json").read_text())["version"]
    machine = answer("dpkg", "--print-architecture")
    date = answer("date", "-R", "-u", "-d", "@" + os.environ.get("SOURCE_DATE_EPOCH", answer("git", "-C", ROOT, "log", "-1", "--format=%ct")))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        stage = pathlib.Path(work, "stage")
        run("meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", stage, stdout=subprocess.DEVNULL)
        trees = {package: pathlib.Path(work, package) for package in CONTROL}
        move(stage, trees["zshard"], "usr/bin/zshard")
        # The link before what it leads to: glob does not find one that leads nowhere.
        move(stage, trees["libzshard-dev"], "usr/include/*", "usr/lib/*/libzshard.so", "usr/lib/*/libzshard.a", "usr/lib/*/pkgconfig/*", "usr/lib/*/cmake/*")
        move(stage, trees["libzshard0"], "usr/lib/*/libzshard.so.0*")
        move(stage, trees["python3-zshard"], "usr/lib/python3/dist-packages/zshard/*")
        left = [str(path.relative_to(stage)) for path in stage.rglob("*") if path.is_file()]
        if left:
            sys.exit(f"package.py: {', '.join(left)}: in no package")
        add_program_files(trees["zshard"])
        add_benchmarks(build, trees["zshard"])
        add_pages(trees["zshard-doc"])
        for package, tree in trees.items():
            strip(tree)
            print(make(package, tree, out, version, "all" if package == "zshard-doc" else machine, date))


if __name__ == "__main__":
    main()
