#!/usr/bin/env python3
"""Every source file that uses a name of the standard library includes the header that declares it, by itself or through headers of ours. What another
standard header happens to bring along differs from one version of the library to the next: GCC 13's <string> has no <cstdint> any more.
Usage: includes_test.py SOURCE_ROOT   (or --self-test)"""

import pathlib
import re
import sys
import tempfile

FOLDERS = ("runtime", "kernels", "comm", "model", "bench", "tests", "docs")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
# Not <utility>, <iterator> and <type_traits>: every container brings them along, in every version.
NAMES = {
    "algorithm": r"std::(min|max|clamp|sort|stable_sort|find|find_if|all_of|any_of|none_of|copy|copy_n|fill|fill_n|transform|reverse|lower_bound|"
                 r"upper_bound|count|count_if|equal|min_element|max_element|unique|for_each|generate|rotate|shuffle)\(",
    "array": r"std::array\b", "atomic": r"std::atomic", "bit": r"std::(bit_cast|bit_ceil|bit_width|popcount|countl_zero|countr_zero|endian)\b",
    "cctype": r"std::(isspace|isdigit|isalnum|isalpha|tolower|toupper)\b", "cerrno": r"\berrno\b", "charconv": r"std::(from_chars|to_chars)\b",
    "chrono": r"std::chrono\b", "cmath": r"std::(sqrt|exp|log|log1p|pow|tanh|abs|isfinite|isnan|isinf|cos|sin|lround|nextafter|floor|ceil|fma|ldexp)\(",
    "condition_variable": r"std::condition_variable\b",
    "cstdint": r"std::u?int(8|16|32|64|ptr|max)_t\b|\bU?INT(8|16|32|64)_(MAX|MIN)\b",
    "cstdio": r"std::(FILE|printf|fprintf|fputs|snprintf|fflush|fopen|fclose|puts|fwrite|perror)\b", "cstdlib": r"std::(getenv|exit|abort|_Exit|strtol|strtoll|strtod)\b",
    "cstring": r"std::(memcpy|memset|memmove|memcmp|strlen|strcmp|strncmp|strerror)\b", "deque": r"std::deque\b", "filesystem": r"std::filesystem\b",
    "fstream": r"std::[io]?fstream\b", "functional": r"std::(function|invoke|less|greater|plus|ref|cref)\b", "future": r"std::(future|promise|packaged_task)\b",
    "limits": r"std::numeric_limits\b", "map": r"std::(multi)?map\b", "memory": r"std::(unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared)\b",
    "mutex": r"std::(mutex|recursive_mutex|lock_guard|unique_lock|scoped_lock|once_flag|call_once)\b", "new": r"std::(bad_alloc|nothrow)\b",
    "numeric": r"std::(accumulate|iota|gcd|lcm)\(", "optional": r"std::(optional|nullopt)\b", "random": r"std::(mt19937|random_device|uniform_)",
    "set": r"std::(multi)?set\b", "span": r"std::span\b", "sstream": r"std::[io]?stringstream\b", "stdexcept": r"std::(runtime_error|logic_error|invalid_argument|out_of_range)\b",
    "string": r"std::(string|to_string|stoi|stoll|stod|getline)\b", "system_error": r"std::(system_error|error_code|system_category|generic_category|errc)\b",
    "thread": r"std::(thread|jthread|this_thread)\b", "tuple": r"std::(tuple|tie|make_tuple)\b", "unordered_map": r"std::unordered_map\b",
    "variant": r"std::(variant|visit|get_if|monostate|holds_alternative)\b", "vector": r"std::vector\b",
}
NAMES = {header: re.compile(pattern) for header, pattern in NAMES.items()}
# What the standard, or a header of the system's own, says of another one.
BRINGS = {"charconv": {"system_error"}, "future": {"exception"}, "filesystem": {"system_error"}, "condition_variable": {"mutex"}, "stdint.h": {"cstdint"}}


class Tree:
    def __init__(self, root):
        self.texts, self.includes = {}, {}
        for path in sorted(path for folder in FOLDERS for path in pathlib.Path(root, folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu"):
                name, text = path.relative_to(root).as_posix(), path.read_text()
                self.texts[name], self.includes[name] = COMMENT_OR_TEXT.sub(" ", text), INCLUDE.findall(text)
        self.direct = {name: self.included(name) for name in self.texts}

    def included(self, name):
        """What a file includes itself: the files of ours, and the standard headers."""
        ours, standard = set(), set()
        for included in self.includes[name]:
            beside, installed = (pathlib.PurePosixPath(name).parent / included).as_posix(), included.replace("zshard/", "model/zshard/")
            one = next((one for one in (included, beside, installed) if one in self.texts), None)
            if one is None:
                standard |= {included} | BRINGS.get(included, set())
            else:
                ours.add(one)
        return ours, standard

    def headers(self, name):
        """The standard headers that a file includes, also through ours."""
        seen, todo, found = {name}, [name], set()
        while todo:
            ours, standard = self.direct[todo.pop()]
            found |= standard
            todo += ours - seen
            seen |= ours
        return found

    def problems(self):
        for name, text in self.texts.items():
            headers = self.headers(name)
            for header, pattern in NAMES.items():
                used = None if header in headers else pattern.search(text)
                if used:
                    yield f"{name}: uses {used.group(0).rstrip('(')}, and includes <{header}> nowhere"


def self_test():
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root, "runtime")
        folder.mkdir()
        (folder / "a.h").write_text("#include <cstdint>\n#include <string>\n")
        (folder / "good.cpp").write_text('#include "runtime/a.h"\nstd::int64_t x; std::string y; // std::vector\nauto z = "std::map";\n')
        (folder / "bad.h").write_text("#include <string>\nstd::uint8_t x;\n")
        (folder / "through.cpp").write_text('#include "bad.h"\n#include <vector>\nstd::uintptr_t x; std::size_t n = std::max(1, 2);\n')
        found = list(Tree(root).problems())
    expected = ["runtime/bad.h: uses std::uint8_t, and includes <cstdint> nowhere", "runtime/through.cpp: uses std::max, and includes <algorithm> nowhere",
                "runtime/through.cpp: uses std::uintptr_t, and includes <cstdint> nowhere"]
    if sorted(found) != expected:
        sys.exit(f"includes_test: found {found}, expected {expected}")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    tree = Tree(sys.argv[1])
    found = list(tree.problems())
    print(*found, f"{len(tree.texts)} files, {len(found)} problems", sep="\n")
    return sys.exit(1 if found or len(tree.texts) < 100 else 0)


if __name__ == "__main__":
    main()
