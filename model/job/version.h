#pragma once

/// Version of these headers, for conditions of the preprocessor: 102 is 0.1.2. zs::version() is that of the library
/// that runs.
#define ZSHARD_VERSION_NUMBER (ZSHARD_VERSION_MAJOR * 10000 + ZSHARD_VERSION_MINOR * 100 + ZSHARD_VERSION_PATCH)
#define ZSHARD_VERSION_MAJOR 0
#define ZSHARD_VERSION_MINOR 1
#define ZSHARD_VERSION_PATCH 0

/// Marks what goes away with the next version: ZSHARD_DEPRECATED("0.2", "use copy_weights()") before a declaration
/// keeps it through 0.2, with a warning. A program that defines ZSHARD_NO_DEPRECATION_WARNINGS before it includes the
/// library gets none.
#ifdef ZSHARD_NO_DEPRECATION_WARNINGS
#define ZSHARD_DEPRECATED(since, instead)
#else
#define ZSHARD_DEPRECATED(since, instead) [[deprecated("since zshard " since ": " instead)]]
#endif

namespace zs {

/// "0.1.0": version of the library that the program runs with.
const char* version();

}  // namespace zs
