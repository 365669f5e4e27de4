#pragma once

#include <zshard/zshard.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

// The examples of the documentation as they are, each in a namespace of its own, with its main function under another
// name. What they include is included above.
// NOLINTBEGIN(bugprone-suspicious-include): programs become parts of one
#define main example_main
namespace conv_net {
#include "docs/examples/conv_net.cpp"
}
namespace custom_op {
#include "docs/examples/custom_op.cpp"
}
namespace custom_trainer {
#include "docs/examples/custom_trainer.cpp"
}
namespace fine_tune {
#include "docs/examples/fine_tune.cpp"
}
namespace language_model {
#include "docs/examples/language_model.cpp"
}
namespace lstm {
#include "docs/examples/lstm.cpp"
}
namespace mlp_classifier {
#include "docs/examples/mlp_classifier.cpp"
}
namespace own_optimizer {
#include "docs/examples/own_optimizer.cpp"
}
namespace two_models {
#include "docs/examples/two_models.cpp"
}
namespace vision_transformer {
#include "docs/examples/vision_transformer.cpp"
}
#undef main
// NOLINTEND(bugprone-suspicious-include)
