#!/usr/bin/env python3
"""Names, configuration keys and labels that were given up stay given up: one word for one thing, the field's own.
Usage: words_test.py SOURCE_ROOT   (or --self-test)"""

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


def self_test():
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
        print("\n".join(wrong) or "every planted word is found")
        return 1 if wrong else 0
    count, problems = check(pathlib.Path(sys.argv[1]))
    print("\n".join(problems))
    print(f"{count} files, {len(problems)} words that were given up")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
