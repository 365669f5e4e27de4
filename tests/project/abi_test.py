#!/usr/bin/env python3
"""The installed library has the ABI that tests/project/abi.txt says: what programs call, and how the classes lie in memory that they compile
against. A line that is gone or has changed breaks programs that are built already; new ones do not.

The ABI is what the headers declare that a public header includes directly, as in the API reference: sizes, members and virtual functions of classes,
values of enumerations, and functions that libzshard.so exports. Classes are read by libabigail's abidw from a file that includes <zshard/zshard.h>, so
that the library needs no debug information. (abidiff on dumps of abidw needs all of the standard library's types: 8 MB, 0.3 MB packed with xz; and
counts a new member, which breaks programs, like a new class.)

Usage: abi_test.py SOURCE_ROOT INCLUDE_DIR LIBRARY [--write]   (or --self-test); skipped where abidw is not installed.
--write: the ABI becomes abi.txt; refused where CHANGELOG.md says that this version is released: raise the second number in meson.build first."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

SKIPPED = 77
ABI = pathlib.Path("tests/project/abi.txt")
SHORT = {"std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >": "std::string",
         "std::basic_string_view<char, std::char_traits<char> >": "std::string_view"}
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)


def answer(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, **options)
    if done.returncode != 0:
        sys.exit(f"abi_test: {command[0]} ends with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def public_headers(include):
    """What <zshard/zshard.h> and its parts include directly, as paths below `include`."""
    parts = sorted((include / "zshard").glob("*.h"))
    return {name for part in parts for name in INCLUDE.findall(part.read_text())} | {f"zshard/{part.name}" for part in parts}


def dump_of(include, folder):
    """abidw's XML of all types that <zshard/zshard.h> brings along. Where a library exports nothing, abidw reads nothing."""
    source = folder / "abi.cpp"
    source.write_text("#include <zshard/zshard.h>\nint zshard_face = 1;\n")
    answer("g++", "-std=c++20", "-g", "-fno-eliminate-unused-debug-types", "-femit-class-debug-always", "-fPIC", "-shared", "-isystem", include, source,
           "-o", folder / "abi.so")
    return ElementTree.fromstring(answer("abidw", "--load-all-types", "--no-corpus-path", "--no-comp-dir-path", folder / "abi.so"))


class Types:
    """Names of abidw's types by their ids."""

    def __init__(self, root):
        self.elements = {}
        self.names = {}
        self.note(root, "")

    def note(self, element, scope):
        name = element.get("name")
        inner = f"{scope}{name}::" if element.tag in ("namespace-decl", "class-decl", "union-decl") and name else scope
        if element.get("id") and element.tag.endswith(("-decl", "-def", "-type")):
            if element.get("id") not in self.elements or element.get("is-declaration-only") != "yes":
                self.elements[element.get("id")] = element
                self.names[element.get("id")] = f"{scope}{name}"
        for child in element:
            self.note(child, inner)

    def name(self, identity, depth=0):
        element = self.elements.get(identity)
        if element is None or depth > 8:
            return "?"
        suffix = {"pointer-type-def": "*", "reference-type-def": "&", "qualified-type-def": ""}.get(element.tag)
        if suffix is None:
            return self.names[identity]
        const = " const" if element.get("const") == "yes" else ""
        return f"{self.name(element.get('type-id'), depth + 1)}{const}{suffix}"


def lines_of_class(element, scope, types):
    name = f"{scope}{element.get('name')}"
    methods = [method for method in element.findall("member-function") if method.get("vtable-offset")]
    yield f"class {name}: {int(element.get('size-in-bits', 0)) // 8} bytes, {len(methods)} virtual functions of its own"
    for base in element.findall("base-class"):
        yield f"class {name}: base {types.name(base.get('type-id'))} at bit {base.get('layout-offset-in-bits')}"
    for member in element.findall("data-member"):
        if member.get("static") != "yes":
            variable = member.find("var-decl")
            called = variable.get("name") if member.get("access") == "public" else "(not public)"
            yield f"class {name}: {types.name(variable.get('type-id'))} {called} at bit {member.get('layout-offset-in-bits')}"
    for method in methods:
        yield f"class {name}: virtual {method.find('function-decl').get('name')} at {method.get('vtable-offset')}"


def lines_of_types(element, scope, types, is_public):
    """Lines of the classes and enumerations in a namespace or class, but for its private ones."""
    own = (inner for outer in element if outer.get("access") != "private" for inner in (outer if outer.tag == "member-type" else [outer]))
    for child in own:
        name = child.get("name") or ""
        if child.get("is-declaration-only") == "yes" or child.get("is-anonymous") == "yes" or "__anonymous" in name or name == "detail":
            continue
        if child.tag == "namespace-decl":
            yield from lines_of_types(child, f"{scope}{name}::", types, is_public)
        elif not is_public(child):
            continue
        elif child.tag in ("class-decl", "union-decl"):
            yield from lines_of_class(child, scope, types)
            yield from lines_of_types(child, f"{scope}{name}::", types, is_public)
        elif child.tag == "enum-decl":
            values = " ".join(f"{value.get('name')}={value.get('value')}" for value in child.findall("enumerator"))
            yield from (f"enum {scope}{name}: {value}" for value in values.split())


def name_of(function):
    """zs::Tensor::to_host of "zs::Tensor::to_host(int) const": what stands before its arguments, without template arguments."""
    return re.sub(r"<[^()]*>", "", re.split(r"\(|\[abi:", function.replace("(anonymous namespace)", ""), maxsplit=1)[0]).split(" ")[-1]


def functions_of(library, classes, words):
    """Functions and variables that the library itself has (not the inline ones, which a program has too) of public classes, or by a public name."""
    symbols = [line.split() for line in answer("nm", "-D", "--defined-only", library).splitlines()]
    strong = sorted({row[2].split("@")[0] for row in symbols if len(row) == 3 and row[1] in "TBDR"})
    for name in answer("c++filt", input="\n".join(strong)).splitlines():
        for long, short in SHORT.items():
            name = name.replace(long, short)
        plain = name_of(name)
        owner, _, last = plain.rpartition("::")
        if owner in classes or (owner == "zs" and last in words):
            yield f"function {name}"


def abi_of(include, library):
    with tempfile.TemporaryDirectory(prefix="zshard-abi.") as folder:
        root = dump_of(include, pathlib.Path(folder))
    public = public_headers(include)
    types = Types(root)
    lines = set()
    for space in (element for unit in root.findall("abi-instr") for element in unit.findall("namespace-decl") if element.get("name") == "zs"):
        lines |= set(lines_of_types(space, "zs::", types, lambda child: any((child.get("filepath") or "").endswith("/" + name) for name in public)))
    if not lines:
        sys.exit("abi_test: no class of namespace zs was found: is this abidw another one than libabigail's 2.2?")
    classes = {re.match(r"(?:class|enum) (\S+): ", line).group(1) for line in lines if re.match(r"(?:class|enum) (\S+): ", line)}
    words = {word for name in public for word in re.findall(r"\b([a-z_]\w*)\(", (include / name).read_text())}
    return sorted(lines | set(functions_of(library, classes, words)))


def broken(old, new):
    """(lines that are gone or have changed, lines that are new)"""
    return [line for line in old if line not in set(new)], [line for line in new if line not in set(old)]


def version_of(root):
    return re.search(r"version : '([^']+)'", (root / "meson.build").read_text()).group(1)


def is_released(root, version):
    heading = re.search(rf"^## {re.escape(version)}\b(.*)$", (root / "CHANGELOG.md").read_text(), re.M)
    return heading is not None and "unreleased" not in heading.group(1)


def write(root, abi):
    version = version_of(root)
    if is_released(root, version):
        sys.exit(f"abi_test: {version} is released, and its ABI stays: raise the second number of the version in meson.build and model/job/version.h first")
    (root / ABI).write_text(f"zshard {version}\n" + "\n".join(abi) + "\n")
    print(f"{ABI}: {len(abi)} lines")


def check(root, abi):
    version, *old = (root / ABI).read_text().splitlines()
    if version.split()[-1].split(".")[:2] != version_of(root).split(".")[:2]:
        sys.exit(f"abi_test: {ABI} is of {version}, and meson.build's is {version_of(root)}: write it anew with --write")
    gone, fresh = broken(old, abi)
    for line in gone:
        print(f"gone or changed: {line}")
    print(f"{len(old)} lines of {version}: {len(gone)} gone or changed, {len(fresh)} new")
    if gone:
        print("Programs that are built already would break. Keep what they use (docs/contributing.md, The library's ABI), or, where this version is not\n"
              "released, say it in CHANGELOG.md and write it anew: tests/project/abi_test.py SOURCE_ROOT INCLUDE_DIR LIBRARY --write")
    return 1 if gone else 0


HEADER = """#pragma once
#include <string>
namespace zs {
enum class Colour { red, green };
class Lamp {
 public:
  virtual ~Lamp();
  virtual void shine(int seconds);
  std::string name;
  int level = 0;
};
int count(const Lamp& lamp);
}  // namespace zs
"""
SOURCE = """#include <zshard/zshard.h>
namespace zs {
Lamp::~Lamp() = default;
void Lamp::shine(int) {}
int count(const Lamp&) { return 1; }
int hidden() { return 2; }
}  // namespace zs
"""


def self_test():
    """Each way in which a program that is built already breaks is found; what is added is not."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "zshard/detail").mkdir(parents=True)
        (folder / "zshard/zshard.h").write_text('#include "zshard/detail/lamp.h"\n')

        def abi(header=HEADER, source=SOURCE):
            (folder / "zshard/detail/lamp.h").write_text(header)
            (folder / "lamp.cpp").write_text(source)
            answer("g++", "-std=c++20", "-fPIC", "-shared", "-I", folder, folder / "lamp.cpp", "-o", folder / "lamp.so")
            return abi_of(folder, folder / "lamp.so")

        old = abi()
        for line in ("class zs::Lamp: 48 bytes, 2 virtual functions of its own", "enum zs::Colour: green=1", "function zs::count(zs::Lamp const&)",
                     "class zs::Lamp: int level at bit 320", "function zs::Lamp::shine(int)"):
            assert line in old, (line, old)
        assert not any("hidden" in line for line in old), old
        for what, header, source in (
                ("a member before another", HEADER.replace("  int level", "  bool is_on = false;\n  int level"), SOURCE),
                ("a value before another", HEADER.replace("{ red", "{ blue, red"), SOURCE),
                ("a virtual function more", HEADER.replace("  std::string", "  virtual void dim() {}\n  std::string"), SOURCE),
                ("another argument", HEADER.replace("count(const Lamp& lamp", "count(const Lamp& lamp, int"), SOURCE.replace("count(const Lamp&", "count(const Lamp&, int")),
                ("a member's other type", HEADER.replace("int level", "unsigned level"), SOURCE)):
            assert broken(old, abi(header, source))[0], what
        gone, fresh = broken(old, abi(HEADER.replace("int count", "int sum(int a);\nint count"), SOURCE + "int zs::sum(int a) { return a; }\n"))
        assert not gone and fresh == ["function zs::sum(int)"], (gone, fresh)
        (folder / "CHANGELOG.md").write_text("## 0.2.0, unreleased\n\n## 0.1.0 (2026-01-01)\n")
        assert is_released(folder, "0.1.0") and not is_released(folder, "0.2.0")


def main():
    if shutil.which("abidw") is None:
        print("skipped: abidw is not installed (apt-get install abigail-tools)")
        return SKIPPED
    if sys.argv[1] == "--self-test":
        self_test()
        return 0
    root, include, library = (pathlib.Path(word).resolve() for word in sys.argv[1:4])
    abi = abi_of(include, library)
    return write(root, abi) if sys.argv[4:] == ["--write"] else check(root, abi)


if __name__ == "__main__":
    sys.exit(main())
