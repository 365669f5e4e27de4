// A library with NCCL's functions, of which only the one that says the version does anything. HOLLOW_VERSION: that
// version; less than zero: the call fails.
namespace {

constexpr int kSystemError = 2, kInvalidUsage = 5;

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = HOLLOW_VERSION;
  return HOLLOW_VERSION < 0 ? kSystemError : 0;
}
int ncclGetErrorString() { return kInvalidUsage; }
int ncclGetLastError() { return kInvalidUsage; }
int ncclGetUniqueId() { return kInvalidUsage; }
int ncclCommInitRankConfig() { return kInvalidUsage; }
int ncclCommSplit() { return kInvalidUsage; }
int ncclCommFinalize() { return kInvalidUsage; }
int ncclCommDestroy() { return kInvalidUsage; }
int ncclCommAbort() { return kInvalidUsage; }
int ncclCommGetAsyncError() { return kInvalidUsage; }
int ncclAllGather() { return kInvalidUsage; }
int ncclReduceScatter() { return kInvalidUsage; }
int ncclAllReduce() { return kInvalidUsage; }
int ncclBroadcast() { return kInvalidUsage; }
int ncclSend() { return kInvalidUsage; }
int ncclRecv() { return kInvalidUsage; }
int ncclGroupStart() { return kInvalidUsage; }
int ncclGroupEnd() { return kInvalidUsage; }

}  // extern "C"
