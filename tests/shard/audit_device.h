#pragma once

#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/device/device.h"

namespace zs::test {

/// A CPU device that runs every op alone, at once and several times, to see whether its declaration is true: with all
/// memory that it does not declare poisoned and then randomised, with what it only writes filled differently, and with
/// each buffer that it reads changed. Everything that is amiss becomes a line in `findings`. Work then goes on with
/// what the op made of the real memory.
///
/// All memory comes from one range, so that an access anywhere in it is noticed. The first two ops of a name and sizes
/// are audited, the others only run; how often depends on declarations alone, so that ranks whose ops meet stay in
/// step. Host thread only.
class AuditDevice final : public Device {
 public:
  /// `rank`: ranks change what they read differently, so that a maximum of equals is not left as it is.
  explicit AuditDevice(std::int64_t bytes, int rank = 0);
  ~AuditDevice() override;

  DeviceKind kind() const override { return DeviceKind::cpu; }
  Stream& stream(StreamRole role) override { return streams_[static_cast<std::size_t>(role)]; }
  Allocator& allocator() override { return allocator_; }
  Pool& pool() override { return pool_; }
  Profile& profile() override { return profile_; }
  Scratch& scratch() override { return scratch_; }
  PinnedMemory& pinned_memory() override { return locked_; }
  void keep(std::vector<std::shared_ptr<void>>) override {}

  const std::vector<std::string>& findings() const { return findings_; }
  /// Of the ops that ran, without what follows a colon.
  const std::set<std::string>& audited() const { return audited_; }

 private:
  using Bytes = std::vector<unsigned char>;

  class AuditStream final : public Stream {
   public:
    AuditStream(StreamRole role, AuditDevice& device) : role_(role), device_(device) {}
    StreamRole role() const override { return role_; }

   protected:
    OpMemory reserve(const OpInfo& info) override { return {device_.scratch_.reserve(*this, info.scratch_bytes), {}}; }
    void do_enqueue(OpInfo info, Work work, const OpMemory& memory) override {
      device_.execute(info, work, memory.scratch);
    }
    EventRecord* do_record() override;
    void do_wait(EventRecord&) override {}
    void do_synchronize() override {}

   private:
    const StreamRole role_;
    AuditDevice& device_;
  };

  class RangeAllocator final : public Allocator {
   public:
    explicit RangeAllocator(std::int64_t bytes) : range_(static_cast<std::size_t>(bytes)) {}
    DeviceKind device() const override { return DeviceKind::cpu; }
    void* allocate(std::int64_t bytes) override;
    void deallocate(void*, std::int64_t) noexcept override {}
    unsigned char* begin() { return range_.data() + first_; }
    std::size_t used() const { return used_; }

   private:
    Bytes range_;
    std::size_t first_ = 0, used_ = 0;
  };

  /// Page-locked memory is of the same range.
  class LockedAllocator final : public Allocator {
   public:
    explicit LockedAllocator(RangeAllocator& range) : range_(range) {}
    DeviceKind device() const override { return DeviceKind::cpu; }
    void* allocate(std::int64_t bytes) override { return range_.allocate(bytes); }
    void deallocate(void*, std::int64_t) noexcept override {}

   private:
    RangeAllocator& range_;
  };

  enum Said : unsigned char { nothing = 0, read = 1, written = 2, scratch_bytes = 4 };
  /// A range of the memory in use of which an op says the same.
  struct Part {
    std::size_t begin, bytes;
    unsigned char said;
    bool is(int what) const { return (said & what) != 0; }
    bool is_same(const Bytes& a, const Bytes& b) const;
  };
  using Declaration = std::vector<Part>;
  /// What an op finds in memory.
  enum class Content { as_it_is, poison, noise };

  void execute(const OpInfo& info, const Work& work, const Buffer& scratch);
  void audit(const OpInfo& info, const Work& work, const Buffer& scratch);
  void audit_uses(const OpInfo& info, const Work& work, const Buffer& scratch, const Declaration& declaration,
                  const Bytes& plain);
  Declaration declaration_of(const OpInfo& info, const Buffer& scratch);
  Bytes filled(const Bytes& memory, const Declaration& declaration, Content undeclared, Content written_only) const;
  Bytes run(const OpInfo& info, const Work& work, const Buffer& scratch, const Bytes& memory);
  std::size_t offset(const Buffer& buffer);
  void check_untouched(const OpInfo& info, const Declaration& declaration, const Bytes& before, const Bytes& after);
  static bool same_is_written(const Declaration& declaration, const Bytes& a, const Bytes& b);
  void find(const OpInfo& info, const std::string& what);

  const int rank_;
  const Bytes noise_;
  ExecContext context_{1, nullptr};
  RangeAllocator allocator_;
  Pool pool_;
  Scratch scratch_{pool_};
  PinnedMemory locked_{std::make_unique<LockedAllocator>(allocator_), 0};
  Profile profile_;
  std::array<AuditStream, kStreamRoles> streams_;
  std::vector<std::string> findings_;
  std::set<std::string> audited_;
  bool threw_ = false;                // the last run; an op may exist for that
  std::map<std::string, int> times_;  // by name and sizes
};

}  // namespace zs::test
