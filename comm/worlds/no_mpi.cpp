// Programs without MPI have this in the place of process_world.cpp: their ranks are threads of one process.
#include "comm/world.h"
#include "comm/worlds/mpi_library.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

[[noreturn]] void refuse() {
  throw Error(ExitCode::usage, "this build has no MPI", "comm.transport",
              "set comm.ranks for ranks as threads of one process, or use a build with MPI");
}

}  // namespace

MpiLibrary mpi_of_this_build() { return MpiLibrary::none; }
std::string mpi_version() { return "no, ranks are threads"; }
std::string chosen_transport(std::string_view) { refuse(); }
std::unique_ptr<World> make_mpi_world(const WorldOptions&) { refuse(); }
std::unique_ptr<World> make_process_world(const WorldOptions&, std::string_view) { refuse(); }

}  // namespace zs
