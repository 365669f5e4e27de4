#pragma once

#include "model/chat/value.h"

namespace zs::jinja {

/// Functions that every template may call: range, dict, namespace, raise_exception, strftime_now.
Dict built_in_functions();

}  // namespace zs::jinja
