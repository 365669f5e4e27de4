"""The man page and bash's completion of the installed program, made from what `zshard --help` and `zshard COMMAND --help` print, so that both
name the commands and options that this build has. Usage: manual.py ZSHARD MAN_PAGE COMPLETION"""

import pathlib
import re
import subprocess
import sys

CODES = "README.md's table of exit codes stands in /usr/share/doc/zshard-doc/README.md.gz, from package zshard-doc."


def help_of(program, *command):
    return subprocess.run([program, *command, "--help"], check=True, capture_output=True, text=True, timeout=60).stdout


def commands_of(text):
    """Names and summaries, in order."""
    return re.findall(r"^  zshard (\S+) +(\S.*)$", text, re.M)


def sections_of(text):
    """{heading: [(entry, description)]} of a help text: "Positionals" and "Options"."""
    sections, entries = {}, None
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][a-z]+:", line):
            entries = sections.setdefault(line[:-1], [])
        elif not line.strip():
            entries = None
        elif entries is not None:
            entry, _, description = line.strip().partition("  ")
            if line.startswith("  ") and not line.startswith("    "):
                entries.append([entry, description.strip()])
            elif entries:
                entries[-1][1] += " " + line.strip()
    return sections


def usage_of(text):
    return re.search(r"^Usage: (.*)$", text, re.M).group(1)


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def entries_as_roff(text):
    lines = []
    for heading, entries in sections_of(text).items():
        if heading not in ("Positionals", "Options"):
            continue
        for entry, description in entries:
            lines += [".TP", f"\\fB{roff(entry)}\\fR", roff(description) or "\\&"]
    return lines


def man_page(version, whole, helps):
    lines = [f'.TH ZSHARD 1 "" "zshard {version}" "User Commands"', ".SH NAME", "zshard \\- train models whose parameters are sharded over the ranks of an MPI job",
             ".SH SYNOPSIS", "\\fBzshard\\fR [\\fICOMMAND\\fR] [\\fIOPTION\\fR...] [\\fIARGUMENT\\fR...]", ".PP",
             "\\fBmpirun\\fR \\fB\\-q \\-np\\fR \\fIN\\fR \\fBzshard train\\fR \\fICONFIG.toml\\fR", ".SH DESCRIPTION",
             "Parameters, gradients and optimizer state are sharded over ranks (ZeRO\\-3, fully sharded data parallel). A run is one TOML file, whose keys",
             "\\fBzshard keys\\fR explains. Without a command, \\fBzshard\\fR \\fICONFIG.toml\\fR trains.", ".SH COMMANDS"]
    for name, summary in commands_of(whole):
        lines += [".SS", f"zshard {roff(name)}", roff(summary), ".PP", f"Usage: {roff(usage_of(helps[name]))}", *entries_as_roff(helps[name])]
    lines += [".SH EXIT STATUS", "0 where all is well; else the last line of standard error says what, where and what to do.", roff(CODES)]
    return "\n".join(lines) + "\n"


def completion(whole, helps):
    names = [name for name, _ in commands_of(whole)]
    options = {name: " ".join(re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(entry for entry, _ in sections_of(helps[name]).get("Options", [])))) for name in names}
    cases = "\n".join(f"    {name}) words='{options[name]}' ;;" for name in names if name != "run")
    return f"""# Completion of zshard's commands and options; other words are files.
_zshard() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} words
  case ${{COMP_WORDS[1]}} in
{cases}
    *) words='{options["run"]}' ;;
  esac
  if ((COMP_CWORD == 1)); then words="train {' '.join(names)} $words"; fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  if [[ $word != -* ]]; then mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY < <(compgen -f -- "$word"); fi
}}
complete -o filenames -F _zshard zshard
"""


def write(program, man, bash):
    whole = help_of(program)
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True, timeout=60).stdout.split()[1].rstrip(",")
    helps = {name: help_of(program, name) for name, _ in commands_of(whole)}
    if not helps:
        sys.exit(f"manual.py: {program} --help lists no commands")
    pathlib.Path(man).write_text(man_page(version, whole, helps))
    pathlib.Path(bash).write_text(completion(whole, helps))


if __name__ == "__main__":
    write(*sys.argv[1:])
