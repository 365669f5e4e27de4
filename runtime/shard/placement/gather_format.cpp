#include "runtime/shard/placement/gather_format.h"

#include "runtime/base/int8_blocks.h"
#include "runtime/base/random.h"
#include "runtime/base/usage_error.h"

namespace zs {
namespace {

using Pack = void (*KernelTable::*)(ExecContext&, Buffer, Buffer, int);

/// Blocks with a scale each, of which the kernels make bytes.
class Blocks final : public GatherFormat {
 public:
  Blocks(const char* name, Pack pack, Pack unpack) : name_(name), pack_(pack), unpack_(unpack) {}
  std::int64_t encoded_bytes(std::int64_t elems, DType) const override { return packed_bytes(elems); }
  void encode(const Work& work, Buffer encoded, Buffer shard) const override {
    (work.kernels.*pack_)(work.exec, encoded, shard, 1);
    const std::int64_t n = shard.elems, scales = int8_scales_at(n), end = scales + 4 * int8_blocks(n);
    for (const Buffer& gap : {encoded.slice(n, scales - n), encoded.slice(end, encoded.elems - end)})
      if (gap.elems > 0) work.kernels.zero(work.exec, gap);  // every byte that travels is defined
  }
  void decode(const Work& work, Buffer full, Buffer encoded, int parts) const override {
    (work.kernels.*unpack_)(work.exec, full, encoded, parts);
  }
  std::string_view name() const override { return name_; }

 private:
  const char* name_;
  Pack pack_, unpack_;
};

}  // namespace

std::uint64_t GatherFormat::fingerprint() const { return hash_name(name()) | 1; }

const GatherFormat* int8_format() {
  static const Blocks format("int8", &KernelTable::pack_int8, &KernelTable::unpack_int8);
  return &format;
}

const GatherFormat* fp8_format() {
  static const Blocks format("fp8", &KernelTable::pack_fp8, &KernelTable::unpack_fp8);
  return &format;
}

const GatherFormat* gather_format_named(std::string_view name) {
  if (name == "none") return nullptr;
  if (name == "int8") return int8_format();
  ZS_REQUIRE(name == "fp8", "no gather format is called {}: there are none, int8 and fp8", name);
  return fp8_format();
}

}  // namespace zs
