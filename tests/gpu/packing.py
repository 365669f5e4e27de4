"""What a bare GPU machine lacks, taken from this machine's Debian packages: which files, which libraries they load, and how each is copied so that the
folder can be moved. Used by tests/gpu/bundle."""

import fnmatch
import pathlib
import re
import shutil
import subprocess
import sys

LIBRARIES = ("usr/include/*", "usr/lib/*/*.so", "usr/lib/*/*.so.*", "*/pkgconfig/*.pc")
OPEN_MPI_PARTS = ("usr/lib/*/openmpi/lib/openmpi3/*.so", "usr/lib/*/openmpi/lib/openmpi3/*.txt", "usr/share/openmpi/*")
PACKAGES = {
    "libfmt-dev": LIBRARIES, "libfmt9": LIBRARIES, "libtomlplusplus-dev": LIBRARIES, "libtomlplusplus3": LIBRARIES,
    "libpcre2-dev": ("usr/include/pcre2.h", "usr/lib/*/libpcre2-8.so", "*/pkgconfig/libpcre2-8.pc"), "libpcre2-8-0": LIBRARIES,
    "libutf8proc-dev": LIBRARIES, "libutf8proc2": LIBRARIES,
    "libsentencepiece-dev": LIBRARIES, "libsentencepiece0": LIBRARIES,
    "libxxhash-dev": LIBRARIES, "libxxhash0": LIBRARIES, "libcli11-dev": LIBRARIES, "nlohmann-json3-dev": LIBRARIES, "catch2": LIBRARIES,
    "libdnnl-dev": LIBRARIES, "libdnnl2": LIBRARIES,
    "pkgconf-bin": ("usr/bin/pkgconf",), "libpkgconf3": LIBRARIES,
    "libopenmpi-dev": ("usr/lib/*/openmpi/include/mpi*.h", "usr/lib/*/openmpi/include/openmpi/ompi/mpi/cxx/*.h",
                       "usr/lib/*/openmpi/lib/libmpi.so", "usr/lib/*/openmpi/lib/libmpi_cxx.so", "*/pkgconfig/ompi-cxx.pc"),
    "libopenmpi3": (*OPEN_MPI_PARTS, "usr/lib/*/libmpi.so.*", "usr/lib/*/libmpi_cxx.so.*", "usr/lib/*/libmca_*.so.*"),
    "openmpi-bin": ("usr/bin/orterun", "usr/bin/orted"), "openmpi-common": ("usr/share/openmpi/*",),
    "libpmix2": ("usr/lib/*/pmix2/lib/pmix/*.so", "usr/lib/*/pmix2/share/*"),
}
# For hardware that is not asked for, with libraries that the machine would have to bring; other ways than MPI's messages.
UNWANTED = re.compile(r"/mca_\w*(ucx|ofi|psm|usnic|openib|lustre|monitoring|romio)\w*\.(so|txt)|/mca_(atomic|memheap|scoll|spml|sshmem)_|"
                      r"/libmca_common_(ofi|ucx|verbs|monitoring)")
# Every machine with a C++ compiler has its own of these, at least as new.
PART_OF_THE_MACHINE = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|anl|nsl|gcc_s|stdc\+\+|gomp))\.so")
LINKS = {"usr/bin/mpirun": "orterun", "usr/bin/pkg-config": "pkgconf"}
DNNL = """prefix=${pcfiledir}/../..
Name: dnnl
Description: oneDNN
Version: %s
Libs: -L${prefix}/lib/%s -ldnnl
Cflags: -I${prefix}/include
"""
ENVIRONMENT = """# For bash: . env
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PATH=$here/usr/bin:$PATH
export LD_LIBRARY_PATH=$here/usr/lib/%(arch)s${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PKG_CONFIG_PATH=$here/usr/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
export OPAL_PREFIX=$here/usr PMIX_INSTALL_PREFIX=$here/usr/lib/%(arch)s/pmix2
export PMIX_PKGLIBDIR=$PMIX_INSTALL_PREFIX/lib/pmix PMIX_PKGDATADIR=$PMIX_INSTALL_PREFIX/share/pmix
export OMPI_MCA_plm=isolated  # ranks on this machine only: else mpirun ends where there is no ssh
unset here
"""


def die(message):
    sys.exit(f"bundle: error: {message}")


def output_of(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        die(f"{' '.join(command)}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
    return done.stdout


def corpus():
    """The King James Bible as text."""
    return output_of("bible", "-f", "Genesis1:1-Revelation22:21")


def wanted_files(packages):
    """What the packages hold of what is wanted, as it is named there."""
    files = []
    for package, patterns in packages.items():
        held = [line[1:] for line in output_of("dpkg", "-L", package).splitlines()]
        chosen = [name for name in held if any(fnmatch.fnmatch(name, p) for p in patterns) and not UNWANTED.search("/" + name)
                  and not pathlib.Path("/", name).is_dir()]
        if not chosen:
            die(f"the package {package} holds nothing of what is wanted: {', '.join(patterns)}")
        files += chosen
    return files


def needed_libraries(files, part_of_the_machine=PART_OF_THE_MACHINE):
    """What the programs and libraries among `files` load, without what every machine has."""
    needed = set()
    for name in files:
        path = pathlib.Path("/", name)
        if "include" in path.parts or path.suffix in (".pc", ".txt", ".h") or not path.read_bytes().startswith(b"\x7fELF"):
            continue
        for line in output_of("ldd", str(path)).splitlines():
            words = line.split()
            if len(words) < 3 or words[1] != "=>":
                continue
            if words[2] == "not":
                die(f"{path} needs {words[0]}, which is not here")
            if not part_of_the_machine.match(words[0]):
                needed.add(words[2])
    return needed


def pack(folder, name):
    """One file where it was; a link to a file beside it stays one; of pkg-config's the paths begin at the folder."""
    source, target = pathlib.Path("/", name), folder / name
    if source.suffix == ".pc":
        target = folder / "usr/lib/pkgconfig" / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(re.sub(r"/usr\b", "${pcfiledir}/../..", source.read_text()))
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink() and not str(source.readlink()).startswith("/"):
        target.symlink_to(source.readlink())
    else:
        shutil.copy(source, target)


def pack_all(folder, files, libraries):
    """The files where they were, and the libraries where the loader finds them: below one folder, whatever links lead there on this machine."""
    arch = output_of("g++", "-print-multiarch").strip()
    folder.mkdir(parents=True)
    for name in sorted(set(files)):
        pack(folder, name)
    there = {f"usr/lib/{arch}/{pathlib.Path(path).name}": path for path in libraries}
    for name, path in there.items():
        if not (folder / name).exists():
            (folder / name).unlink(missing_ok=True)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / name)
    for name, to in LINKS.items():
        if (folder / name).parent.joinpath(to).exists():
            (folder / name).symlink_to(to)
    (folder / "env").write_text(ENVIRONMENT % {"arch": arch})
    broken = [str(path) for path in folder.rglob("*") if path.is_symlink() and not path.exists()]
    if broken:
        die(f"links that lead nowhere: {', '.join(broken)}")
    return arch, sorted(there)
