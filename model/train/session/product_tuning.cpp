#include "model/train/session/product_tuning.h"

#include "comm/together.h"
#include "runtime/device/cuda_device.h"
#include "runtime/device/product_choices.h"

namespace zs {
namespace {

ProductChoices* choices_of(Device& device) {
  const auto* const gpu = dynamic_cast<const CudaDevice*>(&device);
  return gpu == nullptr ? nullptr : gpu->context().product_choices();
}

}  // namespace

ProductTuning::ProductTuning(Device& device, World& world) : world_(world), choices_(choices_of(device)) {}

bool ProductTuning::adopt(const std::string& text, const char* taken, const char* refused) {
  const std::string own = choices_->made_for();
  const World::Agreement other = world_.agree(text.starts_with(own + '\n') ? 0 : 1, own);
  if (other.code != 0) {
    message_ = fmt::format("{}: those are for {}, rank {} has {}", refused, text.substr(0, text.find('\n')), other.rank,
                           other.message);
    return false;
  }
  choices_->adopt(text);
  chosen_ = text;
  const ProductChoices::Summary& all = choices_->summary();
  message_ = fmt::format("{}: {} of {} by another algorithm than cuBLASLt's first, {:.3f} ms less for one of each",
                         taken, all.changed, all.products, all.saved_ms);
  return true;
}

void ProductTuning::restore(const std::string& saved) {
  if (choices_ != nullptr && !saved.empty())
    adopt(saved, "products as in the checkpoint", "products are timed again, not as in the checkpoint");
}

void ProductTuning::after_step() {
  if (choices_ == nullptr || !choices_->are_open()) return;
  const std::string measured = from_first(world_, world_.rank() == 0 ? choices_->measured() : "");
  const bool is_new = measured != chosen_;
  if (!adopt(measured, "products", "products by cuBLASLt's first algorithms, not by the fastest")) chosen_ = "";
  choices_->settle(chosen_);
  if (!is_new) message_ = "";
}

}  // namespace zs
