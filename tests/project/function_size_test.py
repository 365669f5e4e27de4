#!/usr/bin/env python3
"""No file of the product or its tests has more than 400 lines; no function of the product more than 60 lines or 6 parameters, in kernels/ 80 lines,
and 10 parameters, for each buffer of an op is one; no class more than 40 methods, but for those of LARGE_CLASSES, whose numbers only fall.
Usage: function_size_test.py SOURCE_ROOT   (or --self-test)"""

import pathlib
import re
import sys

FOLDERS = ("runtime", "kernels", "comm", "model", "bench")
SUFFIXES = {".h", ".cpp", ".cu"}
TESTS, TEST_SUFFIXES, GENERATORS = "tests", SUFFIXES | {".py"}, "tests/data/"
MAX_FILE_LINES = 400
MAX_METHODS = 40
LARGE_CLASSES = {"Trainer": 86, "Optimizer": 85, "Executor": 81, "Scheduler": 70, "Watchdog": 63, "ShardedRuntime": 61, "Communicator": 59, "Session": 51}
TAG = re.compile(r",\s*std::index_sequence<[^>]*>(?:\s+\w+)?\s*(?=\))")  # chooses the instance, and carries nothing
# Comments, strings and character constants; a quote between digits separates them.
HIDDEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
NO_FUNCTION = re.compile(r"^\s*(?:template\s*<.*>\s*)?(?:typedef\s+)?(?:namespace|struct|class|enum|union|extern|if|for|while|switch|do|else|try)\b")


def max_lines(name):
    return 80 if name.startswith("kernels/") else 60


def max_parameters(name):
    return 10 if name.startswith("kernels/") else 6


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def parameters(head):
    """How many a function with this head has."""
    head = TAG.sub("", head)
    begin, depth, angle, count = head.index("("), 0, 0, 0
    for at in range(begin, len(head)):
        c = head[at]
        depth += (c in "([{") - (c in ")]}")
        angle += (c == "<") - (c == ">" and head[at - 1] != "-")
        if depth == 0:
            return count + 1 if head[begin + 1 : at].strip() not in ("", "void") else 0
        count += c == "," and depth == 1 and angle == 0
    return 0


def functions(text):
    """(first line, lines, parameters, name) of every function that is defined at the level of a namespace or a class."""
    text = DIRECTIVE.sub(blank, HIDDEN.sub(blank, text))
    stack, head_begin, found = [], 0, []
    for at, c in enumerate(text):
        if c == ";" and "function" not in stack:
            head_begin = at + 1
        elif c == "{":
            head = text[head_begin:at]
            if "function" in stack:
                stack.append("block")
            elif re.search(r"\)\s*(?:noexcept\s*)?:(?!:)", head) and re.search(r"[\w>]\s*$", head):
                stack.append("initialiser")  # of a member
            elif "(" in head and not NO_FUNCTION.match(head) and not re.search(r"(?<![=!<>])=(?!=)\s*$|\boperator\s*$", head):
                stack.append("function")
                start = head_begin + len(head) - len(head.lstrip())
                found.append([text.count("\n", 0, start) + 1, text.count("\n", 0, at), parameters(head), head])
            else:
                stack.append("scope")
                head_begin = at + 1
        elif c == "}" and stack:
            kind = stack.pop()
            if kind == "function":
                found[-1][1] = text.count("\n", 0, at) - found[-1][1] + 1
            if kind in ("function", "scope"):
                head_begin = at + 1
    for line, lines, count, head in found:
        name = re.search(r"([\w~:]+|operator\S+)\s*\(", head)
        yield line, lines, count, name.group(1) if name else "?"


CLASS = re.compile(r"\b(?<!enum )(?:class|struct)\s+(?:\[\[\w+\]\]\s*)?(\w+)(?:\s+final)?(?:\s*:[^;{(]*)?\s*\{")
NO_METHOD = re.compile(r"\b(?:using|friend|typedef|static_assert)\b")


def statements(body):
    """The statements of a class's body, without those of inner braces."""
    depth, begin, flat = 0, 0, []
    for at, c in enumerate(body):
        depth += (c in "{(") - (c in "})")
        if depth == 0 and c in ";}":
            flat.append(body[begin : at + 1])
            begin = at + 1
    return flat


def is_method(statement):
    head = re.sub(r"\b(?:public|private|protected)\s*:(?!:)", " ", statement)
    while (shorter := re.sub(r"<[^<>]*>", "", head)) != head:
        head = shorter
    if NO_METHOD.search(head) or CLASS.search(head):
        return False
    return "operator" in head or re.match(r"[^={(]*[\w~]\s*\((?!\s*\*)", head) is not None


def classes(text):
    """(line, name, number of methods) of every class; overloads count each, inner classes by themselves."""
    text = DIRECTIVE.sub(blank, HIDDEN.sub(blank, text))
    for match in CLASS.finditer(text):
        depth, at = 1, match.end()
        while depth > 0 and at < len(text):
            depth += (text[at] == "{") - (text[at] == "}")
            at += 1
        yield text.count("\n", 0, match.start()) + 1, match.group(1), sum(map(is_method, statements(text[match.end() : at - 1])))


def check_classes(found, large):
    """`found`: (file, line, class, methods) of all classes. A class of the list must have as many as it says: who makes it smaller lowers the number."""
    problems = [f"{name}:{line}: {kind} has {methods} methods, {large.get(kind, MAX_METHODS)} at most"
                for name, line, kind, methods in found if methods > large.get(kind, MAX_METHODS)]
    most = {}
    for _, _, kind, methods in found:
        most[kind] = max(methods, most.get(kind, 0))
    problems += [f"{kind} has {most.get(kind, 0)} methods: lower its number in LARGE_CLASSES ({count}), or remove it there"
                 for kind, count in large.items() if most.get(kind, 0) < count]
    return problems


def check(name, text):
    """Of a test only the lines count; of one that makes data, as long as its table is, not even those."""
    lines = text.count("\n")
    problems = [f"{name} has {lines} lines, {MAX_FILE_LINES} at most"] if lines > MAX_FILE_LINES and not name.startswith(GENERATORS) else []
    if name.startswith(f"{TESTS}/"):
        return problems
    for line, lines, count, function in functions(text):
        if lines > max_lines(name):
            problems.append(f"{name}:{line}: {function} has {lines} lines, {max_lines(name)} at most")
        if count > max_parameters(name):
            problems.append(f"{name}:{line}: {function} has {count} parameters, {max_parameters(name)} at most: take a struct")
    return problems


def self_test():
    """(name, text, how many problems)"""
    body = "  ++x; // { \"\n"
    cases = [("runtime/a.cpp", "void f(int x) {\n" + 58 * body + "}\n", 0), ("runtime/a.cpp", "void f(int x) {\n" + 59 * body + "}\n", 1),
             ("kernels/a.cu", "__global__ void f(int x) {\n" + 78 * body + "}\n", 0), ("kernels/a.cu", "void f(int x) {\n" + 79 * body + "}\n", 1),
             ("comm/a.h", "class A {\n  A(int x) : a_{x}, b_(x) {\n" + 59 * body + "  }\n  int a_ = {};\n};\n", 1),
             ("comm/a.h", "struct A {\n" + 80 * "  int x;\n" + "};\nconst int k[] = {\n" + 80 * "  f(1),\n" + "};\n", 0),
             ("model/a.cpp", "void f(int a, std::map<int, int> b, int c, int d, int e, int f) {}\n", 0),
             ("model/a.cpp", "void f(int a, std::map<int, int> b, int c, int d, int e, int f, int g) {}\n", 1),
             ("model/a.cpp", 400 * "int x;\n", 0), ("model/a.cpp", 401 * "int x;\n", 1),
             ("tests/a/a_test.py", 400 * "x = 1\n", 0), ("tests/a/a_test.py", 401 * "x = 1\n", 1), ("tests/a/a_test.cpp", 401 * "int x;\n", 1),
             ("tests/data/a/make.py", 401 * "x = 1\n", 0), ("tests/a/a.h", "void f(int x) {\n" + 80 * body + "}\n", 0),
             ("model/a.cpp", "namespace {\nvoid f() {\n  const auto g = [&](int x) {\n" + 60 * body + "  };\n}\n}\n", 1)]
    wrong = [f"{check(name, text)} of {text[:60]!r}, expected {count}" for name, text, count in cases if len(check(name, text)) != count]
    text = """class A : public B<int> {
 public:
  A(int x) : a_{x} { f(); g(); }
  ~A();
  A& operator=(const A&) = delete;
  std::function<void(int)> on_end;
  template <class T> T get(std::map<int, T> all) const { return {}; }
  enum class Kind { one, two };
  struct Inner { int x = 0; void f(); };
  static constexpr int kMost = most(3);
  using F = void (*)(int);
  int (*pointer)(int);
 private:
  [[nodiscard]] virtual int h() = 0;
  int a_ = f(3);
};
"""
    if list(classes(text)) != [(1, "A", 5), (9, "Inner", 1)]:
        wrong.append(f"{list(classes(text))}")
    for methods, large, count in ((40, {}, 0), (41, {}, 1), (41, {"A": 41}, 0), (42, {"A": 41}, 1), (41, {"A": 42}, 1), (3, {"Gone": 41}, 1)):
        if len(check_classes([("a.h", 1, "A", methods)], large)) != count:
            wrong.append(f"{methods} methods with {large}")
    return wrong


def main():
    if sys.argv[1:] == ["--self-test"]:
        wrong = self_test()
        print("\n".join(wrong) or "every planted fault is found")
        return 1 if wrong else 0
    root = pathlib.Path(sys.argv[1])
    paths = [p for folder in FOLDERS for p in sorted((root / folder).rglob("*")) if p.suffix in SUFFIXES]
    paths += [p for p in sorted((root / TESTS).rglob("*")) if p.suffix in TEST_SUFFIXES]
    count, problems, found = 0, [], []
    for path in paths:
        text = path.read_text(errors="replace")
        if not path.is_relative_to(root / TESTS):
            count += sum(1 for _ in functions(text))
            found += [(path.relative_to(root).as_posix(), *one) for one in classes(text)]
        problems += check(path.relative_to(root).as_posix(), text)
    problems += check_classes(found, LARGE_CLASSES)
    print("\n".join(problems))
    print(f"{len(paths)} files, {count} functions, {len(found)} classes, {len(problems)} too large")
    return 1 if problems or count < 1000 else 0


if __name__ == "__main__":
    sys.exit(main())
