#!/usr/bin/env python3
"""Names, configuration keys and labels that were given up stay given up: one word for one thing, the field's own. And comments have a subject:
the number of blocks that begin with a word such as "Of" or "What" only falls.
Usage: words_test.py SOURCE_ROOT   (or --self-test)"""

import importlib.util
import pathlib
import re
import sys
import tempfile

# What is not ours any more -> what it is called now. Whole identifiers, in every file.
EVERYWHERE = {
    "Verdict": "Diagnosis", "judge_heard": "diagnose_received", "HostNews": "HeartbeatExchange", "has_spoken": "has_reported",
    "WatchEnquiry": "DevicePoller", "WatchErrand": "DevicePoller::Probe", "FlightPage": "StatusPage", "MeetingPlace": "Rendezvous",
    "MeetingSeat": "RendezvousSlot", "ShmSeat": "ShmSlot", "GpuSeat": "RankGpu", "DirectMeeting": "DirectOperation", "Poison": "AbortFlag",
    "Patience": "Backoff", "Wiring": "TransportInfo", "gather_wire": "gather_comm_dtype", "reduce_wire": "reduce_comm_dtype",
    "fold_loops": "ordered_reduce_loops", "Shadow": "BufferRaceCheck", "shadow_ms": "race_check_ms",
    "is_shadowed": "is_race_checked", "Pacing": "PrefetchOptions", "keep_ends": "keep_root_unsharded", "is_resident": "keep_unsharded",
    "gather_through": "two_level_gather", "gather_kept": "gather_secondary", "keep_shard": "keep_secondary_shard", "NoReduction": "NoSync",
    "Unsharding": "UnshardHandle", "FullParameters": "UnshardScope", "casts_inputs": "cast_forward_inputs", "grad_op": "shard_grad_op",
    "narrow_buffer": "compute_copy_buffer", "LockedMemory": "PinnedMemory", "locked_bytes": "pinned_bytes", "prompt_thread": "short_time_slice",
    "whole_number": "parse_integer", "Twin": "VecPair", "fold_int8": "reduce_int8",
}
# The same where only these folders have given the word up.
IN_FOLDERS = {
    "comm/": {"Visit": "RendezvousGuard", "seat": "slot", "Wire": "CommDType", "Fold": "ReduceInto", "poison": "abort_flag", "news": "heartbeats",
              "verdict": "diagnosis", "errand": "probe", "enquiry": "device poller", "fold": "ordered_reduce",
              "FoldArgs": "OrderedReduceArgs"},
}
SUFFIXES = {".h", ".cpp", ".cu", ".py", ".toml", ".build", ".md"}
TOP = ("runtime", "kernels", "comm", "model", "tests", "bench", "docs")
HISTORY = ("bench/results/", "docs/decisions/", "tests/project/words_test.py")  # what was so then; and this list

# Comments whose first word is one of these have no subject: a reader needs the line before to know what they are about.
NO_SUBJECT = re.compile(r"(?:Of|The same|Those|It|What|Who|Whether|Which|Where|How)\b", re.I)
NOT_PROSE = re.compile(r"namespace\b|clang-format\b|NOLINT")
MOST_WITHOUT_SUBJECT = {"installed headers": 0, "all files": 0}  # lower a number when comments are rewritten; never raise one
COMMENTED, COMMENTED_SUFFIXES = ("runtime", "kernels", "comm", "model"), {".h", ".cpp", ".cu"}
RAW_STRING = re.compile(r'R"(\w*)\(.*?\)\1"', re.S)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\'')


def files(root):
    for top in TOP:
        for path in sorted((root / top).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in SUFFIXES and path.is_file() and not name.startswith(HISTORY):
                yield name, path


def check(root):
    """(number of files read, list of problems)"""
    count, problems = 0, []
    for name, path in files(root):
        count += 1
        table = dict(EVERYWHERE)
        for folder, words in IN_FOLDERS.items():
            if name.startswith(folder):
                table.update(words)
        pattern = re.compile(r"\b(" + "|".join(map(re.escape, table)) + r")\b")
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for word in pattern.findall(line) if "Renamed{" not in line else []:  # whoever uses an old key is told the new one
                problems.append(f"{name}:{number}: {word} is now {table[word]}")
    return count, problems


def comment_blocks(text):
    """(line, words) of every comment: whole lines at one column are one block, and so are a trailing comment and the lines that go on below it."""
    text, column = RAW_STRING.sub(lambda raw: re.sub(r"[^\n]", " ", raw.group(0)), text), None
    blocks = []
    for number, line in enumerate(text.splitlines(), 1):
        begin = STRING.sub(lambda string: " " * len(string.group(0)), line).find("//")
        words = line[begin:].lstrip("/<! ") if begin >= 0 else ""
        if begin >= 0 and begin == column and not line[:begin].strip():
            blocks[-1][1] += " " + words
        elif begin >= 0:
            blocks.append([number, words])
        column = begin if begin >= 0 else None
    return [(number, words) for number, words in blocks if not NOT_PROSE.match(words)]


def installed_headers(root):
    """Names of the headers that `meson install` takes along, by the script that does it."""
    spec = importlib.util.spec_from_file_location("install_headers", root / "model/zshard/install_headers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return set(module.headers(root))


def check_subjects(root, installed, most):
    """(number of blocks read, list of problems)"""
    blocks, found = 0, {kind: [] for kind in most}
    for top in COMMENTED:
        for path in sorted(path for path in (root / top).rglob("*") if path.suffix in COMMENTED_SUFFIXES):
            name = path.relative_to(root).as_posix()
            for number, words in comment_blocks(path.read_text()):
                blocks += 1
                if NO_SUBJECT.match(words):
                    found["all files"].append(f"{name}:{number}: {words}")
                    if name in installed:
                        found["installed headers"].append(found["all files"][-1])
    problems = []
    for kind, limit in most.items():
        if len(found[kind]) > limit:
            problems += found[kind] + [f"{kind}: {len(found[kind])} comments have no subject, {limit} may: let the first word name the thing"]
    return blocks, problems


def self_test():
    return words_self_test() + subjects_self_test()


def subjects_self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {"comm/a.cpp": '/// A handle.\nint a;  // what it is\n' "f(\"// Of\");\n// Order matters\n// which differs\n",
                           "comm/b.h": "  /// Of elements.\nint b;  ///< bytes of it,\n        ///< which are few\n// Those\n"}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        at_limit = check_subjects(root, {"comm/b.h"}, {"installed headers": 2, "all files": 3})
        above = check_subjects(root, {"comm/b.h"}, {"installed headers": 1, "all files": 3})
    fault = ": let the first word name the thing"
    wanted = ["comm/b.h:1: Of elements.", "comm/b.h:4: Those", "installed headers: 2 comments have no subject, 1 may" + fault]
    return [] if at_limit == (6, []) and above == (6, wanted) else [f"found {at_limit} and {above}, expected {wanted}"]


def words_self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {"comm/a.cpp": "Visit visit;\nint is_fine;\n", "runtime/a.h": "class MeetingPlace;\nclass Visit;\n",
                           "docs/a.md": "`comm.shadow_ms`\n", "docs/decisions/b.md": "`Poison`\n"}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = check(root)[1]
    wanted = ["runtime/a.h:1: MeetingPlace is now Rendezvous", "comm/a.cpp:1: Visit is now RendezvousGuard",
              "docs/a.md:1: shadow_ms is now race_check_ms"]
    return [] if found == wanted else [f"found {found}, expected {wanted}"]


def main():
    if sys.argv[1:] == ["--self-test"]:
        wrong = self_test()
        print("\n".join(wrong) or "every planted word and comment is found")
        return 1 if wrong else 0
    root = pathlib.Path(sys.argv[1])
    count, problems = check(root)
    blocks, subjects = check_subjects(root, installed_headers(root), MOST_WITHOUT_SUBJECT)
    print("\n".join(problems + subjects))
    print(f"{count} files, {len(problems)} words that were given up; {blocks} comments")
    return 1 if problems or subjects or count == 0 or blocks == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
