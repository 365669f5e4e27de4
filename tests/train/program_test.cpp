#include "model/train/rank/program.h"

#include <catch2/catch.hpp>
#include <new>
#include <system_error>

namespace program_test {

using namespace zs;

namespace {

template <class Exception>
Error error_of(const Exception& exception) {
  return as_error(std::make_exception_ptr(exception));
}

}  // namespace

TEST_CASE("a thread that cannot be started is a lack of resources, not a full disk") {
  const Error error = error_of(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)));
  CHECK(error.code() == ExitCode::out_of_memory);
  CHECK_THAT(error.what(), Catch::Contains("no thread can be started") && Catch::Contains("ulimit -u"));
  CHECK(error_of(std::system_error(std::make_error_code(std::errc::no_space_on_device))).code() == ExitCode::io);
  CHECK(error_of(std::bad_alloc()).code() == ExitCode::out_of_memory);
  CHECK(error_of(std::runtime_error("?")).code() == ExitCode::internal);
}

TEST_CASE("threads that may be had are") { CHECK_NOTHROW(check_threads(4)); }

TEST_CASE("the version says what the program was built with and runs on") {
  const std::string text = describe_build();
  CHECK_THAT(text, Catch::StartsWith("zshard ") && Catch::Contains("\nCUDA: ") &&
                       Catch::Contains("\nMPI: Open MPI v") && Catch::Contains("\noneDNN: ") &&
                       Catch::Contains("\nCPU kernels: "));
}

}  // namespace program_test
