#include "model/version.h"

namespace zs {

const char* version() { return ZSHARD_VERSION; }

}  // namespace zs
