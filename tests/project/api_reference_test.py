#!/usr/bin/env python3
"""The API reference (docs/Doxyfile) is made without a warning, covers what the public headers include, and says something of every type and function
of namespace zs: of one of several functions of a name, at least. Members say what their names do not.
Usage: api_reference_test.py SOURCE_ROOT   (or --self-test); skipped where Doxygen is not installed
       api_reference_test.py SOURCE_ROOT --input   only whether docs/Doxyfile names the headers, which needs no Doxygen"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
PUBLIC = "model/zshard"


def problems_of_input(root):
    """The Doxyfile names the headers by hand, as there is no other way to leave out what is private."""
    named = set(re.findall(r"\$\(ZSHARD_ROOT\)/(\S+\.h)", (root / "docs" / "Doxyfile").read_text()))
    included = {name for path in (root / PUBLIC).glob("*.h") for name in INCLUDE.findall(path.read_text()) if not name.startswith(PUBLIC)}
    yield from (f"docs/Doxyfile does not name {name}" for name in sorted(included - named))
    yield from (f"docs/Doxyfile names {name}, which no public header includes" for name in sorted(named - included))


def run_doxygen(root, folder):
    """The lines of its warnings; its XML is in folder/xml."""
    text = (root / "docs" / "Doxyfile").read_text() + "\nGENERATE_XML = YES\nXML_PROGRAMLISTING = NO\n"
    done = subprocess.run(["doxygen", "-"], input=text, capture_output=True, text=True, timeout=600,
                          env=os.environ | {"ZSHARD_ROOT": str(root), "ZSHARD_API_DIR": str(folder)})
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines or ([] if done.returncode == 0 else [f"doxygen ends with {done.returncode}"])


def says_something(element):
    return any("".join(element.find(kind).itertext()).strip() for kind in ("briefdescription", "detaileddescription"))


def undocumented(xml):
    for path in sorted(xml.glob("*.xml")):
        for compound in ElementTree.parse(path).getroot().findall("compounddef"):
            name = compound.findtext("compoundname")
            if compound.get("kind") in ("class", "struct") and compound.get("prot") == "public" and "<" not in name and not says_something(compound):
                yield f"{name} ({compound.find('location').get('file')})"
            if compound.get("kind") == "namespace" and name == "zs":
                members = compound.findall("sectiondef/memberdef")
                said = {member.findtext("name") for member in members if says_something(member)}
                for member in members:
                    if member.findtext("name") not in said and not member.findtext("name").startswith("operator"):
                        yield f"{name}::{member.findtext('name')} ({member.find('location').get('file')})"


def problems(root):
    yield from problems_of_input(root)
    with tempfile.TemporaryDirectory() as folder:
        yield from run_doxygen(root, pathlib.Path(folder))
        yield from (f"nothing is said of {name}" for name in sorted(set(undocumented(pathlib.Path(folder) / "xml"))))


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        texts = {"model/zshard/zshard.h": '#pragma once\n/// \\file\n/// All.\n#include "comm/part.h"\n',
                 "comm/part.h": "#pragma once\n/// All of it.\nnamespace zs {\n/// A part.\nstruct Part {\n  int size = 0;\n};\n/// Makes one.\nPart make();\n"
                                "Part make(int size);\n}  // namespace zs\n",
                 "docs/Doxyfile": "OUTPUT_DIRECTORY = $(ZSHARD_API_DIR)\nINPUT = $(ZSHARD_ROOT)/model/zshard $(ZSHARD_ROOT)/comm/part.h\n"
                                  "FILE_PATTERNS = *.h\nWARN_IF_UNDOCUMENTED = NO\nHAVE_DOT = NO\nQUIET = YES\nGENERATE_LATEX = NO\n"}
        for name, text in texts.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        assert list(problems(root)) == [], list(problems(root))
        (root / "comm/part.h").write_text(texts["comm/part.h"].replace("/// A part.\n", "").replace("/// Makes one.\n", "/// See \\ref nowhere\n"))
        (root / "model/zshard/more.h").write_text('#include "comm/more.h"\n')
        found = "\n".join(problems(root))
        for words in ("does not name comm/more.h", "nothing is said of zs::Part", "'nowhere'"):
            assert words in found, (words, found)


def main():
    if sys.argv[2:] == ["--input"]:
        found = list(problems_of_input(pathlib.Path(sys.argv[1])))
        print("\n".join([*found, f"{len(found)} problems with the input of the API reference"]))
        return 1 if found else 0
    if shutil.which("doxygen") is None:
        print("skipped: Doxygen is not installed (apt-get install doxygen)")
        return 77
    if sys.argv[1] == "--self-test":
        self_test()
        return 0
    found = list(problems(pathlib.Path(sys.argv[1]).resolve()))
    for problem in found:
        print(problem)
    print(f"{len(found)} problems with the API reference")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
