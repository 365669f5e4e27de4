#include "model/nn/dropout.h"

#include "runtime/base/random.h"
#include "runtime/base/usage_error.h"

namespace zs {

Dropout::Dropout(std::string path, float probability)
    : Layer(std::move(path)), probability_(probability), place_(hash_name(this->path())) {
  if (!(probability >= 0 && probability < 1))
    throw UsageError(fmt::format("dropout layer \"{}\": probability {}", this->path(), probability),
                     "a probability is at least 0 and below 1");
}

bool Dropout::is_active() const { return probability_ > 0 && owner() != nullptr && owner()->is_training(); }

Tensor Dropout::forward(const Tensor& x, std::uint64_t call) {
  if (probability_ == 0) return x;
  if (owner() == nullptr)
    throw UsageError(fmt::format("dropout layer \"{}\" is called outside of a sharded model", path()),
                     "register it by add_child() or make_child() before fully_shard(), or call zs::dropout() with a "
                     "RandomKey of your own");
  const std::int64_t samples = x.shape().rank() > 0 ? x.shape()[0] : 1;
  const auto key = owner()->random_key(call == 0 ? place_ : mix64(place_ ^ mix64(call)), samples);
  return key ? dropout(x, probability_, *key) : x;
}

}  // namespace zs
