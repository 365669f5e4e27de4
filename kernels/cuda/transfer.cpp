#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "runtime/device/cuda_context.h"
#include "runtime/device/upload_ring.h"

/// Between the memory of the host and that of the GPU.
namespace zs::cuda {

void upload(ExecContext& ctx, Buffer out, const void* in) { ctx.uploads().upload(stream_of(ctx), out, in); }

void download(ExecContext& ctx, void* out, Buffer in) {
  ctx.gpu().copy(ctx.native_stream(), {out, in.bytes(), DType::u8, DeviceKind::cpu}, in);
}

}  // namespace zs::cuda
