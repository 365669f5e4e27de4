#include "model/job/version.h"

namespace zs {

const char* version() { return ZSHARD_VERSION; }

}  // namespace zs
