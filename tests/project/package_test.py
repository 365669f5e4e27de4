#!/usr/bin/env python3
"""The Debian packages of `./setup package`, installed into a Debian 12 that has nothing else (debootstrap): the program trains on a text there,
completes its commands and has a manual, and a program of a user's own is compiled against the library's package; and the container image of them,
built on that Debian, which trains too. Needs root, debootstrap and the machine's own package lists; lintian looks at the packages, and buildah builds
the image, where they are there. Usage: package_test.py SOURCE_ROOT"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
# Tags that are known, each with its reason.
KNOWN_TAGS = {
    "bogus-mail-host": "they are for no archive, and nobody's mail",
    "bogus-mail-host-in-debian-changelog": "they are for no archive, and nobody's mail",
    "custom-library-search-path": "Open MPI's own flags for the linker",
}
CONFIG = """name = "tiny"
[model]
preset = "tiny"
[data]
train = "text.txt"
[train]
steps = 3
micro_batch = 2
global_batch = 4
sequence = 32
"""
PROGRAM = """#include <zshard/zshard.h>
#include <cstdio>
int main() { std::printf("zshard %s\\n", zs::version()); }
"""


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def mirror():
    """Where this machine has its own packages from, and the name of its Debian."""
    rows = run("apt-get", "indextargets", "--format", "$(SITE) $(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages").splitlines()
    fit = [row.split() for row in rows if row.endswith("bookworm main")]
    return fit[0][1] if fit else None


def lint(debs):
    if shutil.which("lintian") is None:
        print("lintian is not there, and has looked at nothing")
        return
    done = subprocess.run(["lintian", "--allow-root", "--fail-on", "none", *debs], capture_output=True, text=True)
    unknown = [line for line in done.stdout.splitlines() if (tag := re.match(r"[EW]: \S+(?: \S+)?: (\S+)", line)) and tag[1] not in KNOWN_TAGS]
    if unknown:
        sys.exit("lintian:\n" + "\n".join(unknown))


def inside(root, script, **more):
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           **{key: value for key, value in os.environ.items() if key.endswith("_proxy")}}
    return run("chroot", root, "bash", "-ec", script, env=env, **more)


def expect(condition, what, text):
    if not condition:
        sys.exit(f"{what}:\n{text}")


def write_job(folder):
    (folder / "tiny.toml").write_text(CONFIG)
    (folder / "text.txt").write_text("In the beginning was the word, and nobody had counted it. " * 400)


def check_image(source, root, debs, folder):
    """model/package/Containerfile on a Debian that has nothing else: one rank and two train in it."""
    if shutil.which("buildah") is None:
        print("buildah is not there, and no image was built")
        return
    buildah = ["buildah", "--root", folder / "store", "--runroot", folder / "run", "--storage-driver", "vfs"]
    proxies = [word for key, value in os.environ.items() if key.endswith("_proxy") for word in ("--build-arg", f"{key}={value}")]
    bare = run(*buildah, "from", "scratch").strip()
    run(*buildah, "add", bare, root, "/", timeout=300)
    run(*buildah, "commit", bare, "localhost/debian", timeout=300)
    run(*buildah, "build", "--isolation", "chroot", "--network", "host", *proxies, "--build-arg", "BASE=localhost/debian", "-t", "zshard",
        "-f", source / "model/package/Containerfile", debs, timeout=900)
    job = folder / "job"
    job.mkdir()
    write_job(job)
    made = run(*buildah, "from", "localhost/zshard").strip()
    for command in (["zshard", "train", "tiny.toml"], ["mpirun", "-q", "--oversubscribe", "-np", "2", "zshard", "tiny.toml", "--overwrite"]):
        text = run(*buildah, "run", "--isolation", "chroot", "-v", f"{job}:/work", made, "--", *command, timeout=300)
        expect(re.search(r"^weights: [0-9a-f]{16}$", text, re.M), f"in the image: {command}", text)
    print("built an image, and trained in it")


def check_program(root):
    write_job(root / "root")
    text = inside(root, "cd; zshard train tiny.toml 2>&1")
    expect(re.search(r"^weights: [0-9a-f]{16}$", text, re.M), "one rank", text)
    text = inside(root, "cd; mpirun -q --oversubscribe -np 2 zshard tiny.toml 2>&1")
    expect(re.search(r"^weights: [0-9a-f]{16}$", text, re.M), "two ranks", text)
    text = inside(root, "cd; zshard keys nothing.like.it 2>&1 || true; zshard nope.toml 2>&1 || true; zshard evaluate --help")
    expect("zshard: error: " in text and "train:" not in text and "Usage: zshard evaluate" in text, "messages in the name of zshard", text)
    text = inside(root, "/usr/lib/zshard/bench_step --help")
    expect("--preset" in text, "a benchmark", text)
    text = inside(root, "source /usr/share/bash-completion/completions/zshard; COMP_WORDS=(zshard ev) COMP_CWORD=1; _zshard; echo ${COMPREPLY[@]}; "
                        "COMP_WORDS=(zshard sample --ch) COMP_CWORD=2; _zshard; echo ${COMPREPLY[@]}; zcat /usr/share/man/man1/zshard.1.gz")
    expect(text.startswith("evaluate\n--chat\n.TH ZSHARD 1"), "completion and manual", text[:300])


def main():
    source = pathlib.Path(sys.argv[1])
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        skip("needs root, and apt-get install debootstrap")
    where = mirror()
    if where is None:
        skip("this machine's package lists are not those of Debian 12")
    run("bash", source / "setup", "package", timeout=3000)
    debs = sorted((source / "build-package/debs").glob("*.deb"))
    expect([deb.name.split("_")[0] for deb in debs] == ["libzshard-dev", "libzshard0", "python3-zshard", "zshard-doc", "zshard"], "packages", debs)
    lint(debs)
    with tempfile.TemporaryDirectory(prefix="zshard-package.") as folder:
        root = pathlib.Path(folder, "root")
        run("debootstrap", "--variant=minbase", "bookworm", root, where, timeout=900)
        for name in ("sources.list", "sources.list.d", "apt.conf.d"):
            run("cp", "-rL", f"/etc/apt/{name}", root / "etc/apt") if pathlib.Path("/etc/apt", name).exists() else None
        check_image(source, root, source / "build-package/debs", pathlib.Path(folder))
        mounted = root / "dev/shm"
        mounted.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "none", mounted)
        run("mount", "-t", "proc", "none", root / "proc")
        try:
            for deb in debs:
                shutil.copy(deb, root / "root")
            inside(root, "apt-get update -q && cd /root && apt-get install -q -y ./zshard_*.deb", timeout=900)
            check_program(root)
            inside(root, "cd /root && apt-get install -q -y --no-install-recommends ./libzshard0_*.deb ./libzshard-dev_*.deb g++ pkgconf", timeout=1200)
            (root / "root/own.cpp").write_text(PROGRAM)
            text = inside(root, "cd; g++ -std=c++20 own.cpp -o own $(pkg-config --cflags --libs zshard) && ./own && ldd own", timeout=600)
            expect(text.startswith("zshard ") and "libzshard.so.0" in text, "a program of one's own", text)
            inside(root, "cd /root && apt-get install -q -y --no-install-recommends ./python3-zshard_*.deb", timeout=900)
            text = inside(root, """cd; python3 -c 'import glob, zshard; print(zshard.open_run(glob.glob("runs/*")[0]).metrics["step"][-1])'""")
            expect(text.strip() == "3.0", "the Python module reads that run", text)
            inside(root, "apt-get remove -q -y zshard python3-zshard libzshard0 libzshard-dev && ! ls /usr/lib/*/libzshard* /usr/bin/zshard 2>/dev/null")
        finally:
            run("umount", mounted)
            run("umount", root / "proc")
    print("installed, trained, compiled against, removed")


if __name__ == "__main__":
    main()
