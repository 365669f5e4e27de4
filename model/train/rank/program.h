#pragma once

#include <exception>
#include <string>

#include "runtime/base/check.h"

namespace zs {

/// Keeps the standard descriptors: where standard input, output or error is closed, the next file that is opened would
/// take its place, and what is printed. So they are taken before, by what can be read only: who writes there is told
/// so, as before. Call it first in main.
void keep_standard_descriptors();

/// libgomp reads how long its threads spin before main begins, and by default they spin for milliseconds, which is most
/// of a step when there are more busy threads than CPUs. So the program starts itself again with a short spin, unless
/// the user chose. Call it early in main.
void limit_spinning(char** argv);

/// True if a person reads this process's standard output. mpirun gives a rank a terminal of its own to print to,
/// whatever mpirun itself prints to: that is what counts.
bool prints_to_terminal();

/// Folder of the program, `program` where the system does not say.
std::string program_folder(const char* program);

/// Text of `train --version`: the version, and what the program was built with and runs on.
std::string describe_build();

/// Error(out_of_memory) where this process may not have so many more threads at once. libgomp, which ends the process
/// where it cannot start its team, does not say why.
void check_threads(int count);

/// True if the problem was thrown only because another rank had failed before.
bool is_consequence(const std::exception_ptr& problem);

/// Error that a program dies of, whatever was thrown: an Error as it is, memory that is missing, what the system
/// refused, anything else as a defect of zshard.
Error as_error(const std::exception_ptr& problem);

/// True if standard output takes UTF-8: a file does, and a terminal unless the locale names another character set.
bool prints_utf8();

}  // namespace zs
