#include "runtime/tensor/host_view.h"

#include <algorithm>

#include "runtime/device/cuda_context.h"

namespace zs {

HostView::HostView(const Context& context, Stream& stream, const Buffer& buffer, const std::string& purpose)
    : buffer_(buffer) {
  if (buffer.device != DeviceKind::cuda) {
    stream.synchronize();
    return;
  }
  copy_ = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(buffer.bytes()));
  buffer_.data = copy_->data();
  buffer_.device = DeviceKind::cpu;
  const OpInfo info{purpose.empty() ? kDownload : fmt::format("{}:{}", kDownload, purpose), {buffer}, {}};
  const ScratchBytes at_hand = context.device().pinned_memory().staging().bytes();
  if (buffer.bytes() <= at_hand[static_cast<std::size_t>(stream.role())])
    read_through_locked(context.kernels(), stream, info, buffer);
  else
    read_directly(context, stream, info, buffer);
}

void HostView::read_through_locked(const KernelTable& kernels, Stream& stream, OpInfo info, const Buffer& buffer) {
  void* pinned = nullptr;
  info.pinned_bytes = buffer.bytes();
  stream.enqueue(std::move(info),
                 [&kernels, &pinned, buffer](ExecContext& exec) {  // the stream of a GPU runs this at once
                   pinned = exec.pinned(buffer.bytes());
                   kernels.download(exec, pinned, buffer);
                 });
  stream.synchronize();
  std::copy_n(static_cast<const std::byte*>(pinned), buffer.bytes(), copy_->data());
}

void HostView::read_directly(const Context& context, Stream& stream, OpInfo info, const Buffer& buffer) {
  // A copy to ordinary memory may wait within the driver, which knows no deadline: the stream has to be empty then.
  // Errors name the first op.
  stream.enqueue(info, [](ExecContext&) {});
  stream.synchronize();
  try {
    stream.enqueue(std::move(info), [&kernels = context.kernels(), out = copy_->data(), buffer](ExecContext& exec) {
      kernels.download(exec, out, buffer);
    });
    stream.synchronize();
  } catch (...) {
    context.device().keep({copy_});  // the GPU may still write to it
    throw;
  }
}

void upload_now(const Context& context, const Buffer& out, const void* in) {
  ZS_CHECK(context.device().kind() == DeviceKind::cuda, "memory of device {} is written in place",
           name_of(context.device().kind()));
  OpInfo info{"upload", {}, {out}};
  context.stream().enqueue(
      std::move(info), [&kernels = context.kernels(), out, in](ExecContext& exec) { kernels.upload(exec, out, in); });
}

void fill_words(ExecContext& exec, const Buffer& out, std::uint32_t word) {
  ZS_CHECK(size_of(out.dtype) == sizeof word, "a word of 4 bytes for elements of {}", name_of(out.dtype));
  if (out.device == DeviceKind::cuda) return exec.gpu().fill(exec.native_stream(), out, word);
  std::fill_n(static_cast<std::uint32_t*>(out.data), out.elems, word);
}

void launch_on_host(const Context& context, OpInfo info, HostWork work) {
  std::vector<Buffer> reads = info.reads;
  if (context.device().kind() != DeviceKind::cuda) {
    context.launch(std::move(info),
                   [reads = std::move(reads), work = std::move(work)](ExecContext& exec) { work(exec, reads); });
    return;
  }
  std::vector<HostView> views;
  for (Buffer& buffer : reads) buffer = views.emplace_back(context, context.stream(), buffer, info.name).buffer();
  context.launch(std::move(info),
                 [&](ExecContext& exec) { work(exec, reads); });  // the stream of a GPU runs this at once
}

}  // namespace zs
