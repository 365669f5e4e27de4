#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tensor/context.h"

namespace zs {

/// A buffer's elements as the host reads them: where they lie, or, of a GPU's memory, a copy. Making one blocks the
/// host: what `stream` has been given before is done; it throws what Stream::synchronize does. Valid as long as the
/// buffer is, and nobody writes to it.
class HostView {
 public:
  /// Name of the copy (OpInfo::name), or its beginning.
  static constexpr const char* kDownload = "download";

  /// `purpose`: whose the operation is that copies, for its name.
  HostView(const Context& context, Stream& stream, const Buffer& buffer, const std::string& purpose = {});

  template <class T>
  const T* as() const {
    return buffer_.as<T>();
  }
  /// Elements on the host, but for the meta device, whose elements nobody may read.
  const Buffer& buffer() const { return buffer_; }

 private:
  /// Copies through the pinned memory that the stream has at hand.
  void read_through_locked(const KernelTable& kernels, Stream& stream, OpInfo info, const Buffer& buffer);
  void read_directly(const Context& context, Stream& stream, OpInfo info, const Buffer& buffer);

  Buffer buffer_;
  std::shared_ptr<std::vector<std::byte>> copy_;
};

/// Work that gets the buffers it is declared to read, in their order, on the host.
using HostWork = std::function<void(ExecContext& exec, const std::vector<Buffer>& reads)>;
/// Enqueues `work` on the compute stream. With a GPU the host waits for that stream first, and the work runs now.
void launch_on_host(const Context& context, OpInfo info, HostWork work);

/// Uploads to a GPU, in the compute stream's order; `in` may change once this returns.
void upload_now(const Context& context, const Buffer& out, const void* in);

/// Writes the bits `word` to each element of `out`, of 4 bytes. To a GPU nothing is uploaded for it, so that captured
/// work may do it.
void fill_words(ExecContext& exec, const Buffer& out, std::uint32_t word);

/// Work that writes what the host knows to `out`.
template <class T>
Work upload_of(const KernelTable& kernels, const Buffer& out, std::vector<T> values) {
  ZS_CHECK(std::cmp_equal(values.size() * sizeof(T), out.bytes()), "{} values for {} bytes", values.size(),
           out.bytes());
  return [&kernels, out, values = std::move(values)](ExecContext& exec) { kernels.upload(exec, out, values.data()); };
}

}  // namespace zs
