#include "tests/shard/audit_device.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/random.h"

namespace zs::test {
namespace {

class DoneRecord final : public EventRecord {
 public:
  std::int64_t id() const override { return 0; }

 private:
  void retire() noexcept override { delete this; }
};

std::vector<unsigned char> random_bytes(std::int64_t bytes) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  const CounterRng rng(5);
  std::vector<unsigned char> result((static_cast<std::size_t>(bytes) + kWord - 1) / kWord * kWord);
  for (std::size_t at = 0; at < result.size(); at += kWord) {
    const std::uint64_t word = rng.bits(at);
    std::memcpy(result.data() + at, &word, kWord);
  }
  return result;
}

constexpr int kChanges = 3;

/// Changes values to others that the dtype's users can live with: indices stay within what the buffer holds, or 0 and
/// 1, and offsets, which are i64 that ascend from 0, keep their ends and their order.
template <class T>
void change(T* values, std::int64_t count, int how) {
  if constexpr (std::is_floating_point_v<T>) {
    constexpr T factors[] = {T(0.5), T(-1.5), T(1024)}, offsets[] = {T(0.25), T(0.75), T(3)};
    for (std::int64_t i = 0; i < count; ++i) values[i] = values[i] * factors[how] + offsets[how];
  } else if (std::is_same_v<T, std::int64_t> && values[0] == 0 && values[count - 1] > 0 &&
             std::is_sorted(values, values + count)) {
    for (std::int64_t i = 1; i + 1 < count; ++i) values[i] = how == 0 ? values[0] : values[count - 1];
  } else {
    if (how == 0) std::rotate(values, values + (count > 1 ? 1 : 0), values + count);
    if (how > 0) std::fill_n(values, count, static_cast<T>(how - 1));
  }
}

void change(const Buffer& buffer, void* at, int how) {
  switch (buffer.dtype) {
    case DType::f32: return change(static_cast<float*>(at), buffer.elems, how);
    case DType::f64: return change(static_cast<double*>(at), buffer.elems, how);
    case DType::i32: return change(static_cast<std::int32_t*>(at), buffer.elems, how);
    case DType::i64: return change(static_cast<std::int64_t*>(at), buffer.elems, how);
    case DType::u16: return change(static_cast<std::uint16_t*>(at), buffer.elems, how);
    case DType::u8: return change(static_cast<std::uint8_t*>(at), buffer.elems, how);
    case DType::bf16: {  // the upper half of a float: another exponent, or the other sign
      auto* const values = static_cast<std::uint16_t*>(at);
      for (std::int64_t i = 0; i < buffer.elems; ++i)
        values[i] = static_cast<std::uint16_t>(how == 0   ? values[i] ^ 0x40
                                               : how == 1 ? values[i] ^ 0x8000
                                                          : 0x3fc0 + i % 8);
      return;
    }
  }
}

}  // namespace

EventRecord* AuditDevice::AuditStream::do_record() { return new DoneRecord; }

void* AuditDevice::RangeAllocator::allocate(std::int64_t bytes) {
  constexpr std::size_t kPage = 4096;
  if (used_ == 0) first_ = (kPage - reinterpret_cast<std::uintptr_t>(range_.data()) % kPage) % kPage;
  const std::size_t at = (used_ + 63) / 64 * 64, size = static_cast<std::size_t>(bytes);
  ZS_CHECK(first_ + at + size <= range_.size(), "{} bytes more than the {} of the audited range", size, range_.size());
  used_ = at + size;
  return begin() + at;
}

AuditDevice::AuditDevice(std::int64_t bytes, int rank)
    : Device({}),
      rank_(rank),
      noise_(random_bytes(bytes)),
      allocator_(bytes),
      pool_(allocator_, counter_),
      streams_{AuditStream(StreamRole::compute, *this), AuditStream(StreamRole::unshard, *this),
               AuditStream(StreamRole::reduce, *this), AuditStream(StreamRole::finish, *this),
               AuditStream(StreamRole::offload, *this)} {}

AuditDevice::~AuditDevice() { scratch_.drop(); }

void AuditDevice::find(const OpInfo& info, const std::string& what) {
  const std::string finding = fmt::format("'{}' {}", info.name.substr(0, info.name.find(':')), what);
  if (std::find(findings_.begin(), findings_.end(), finding) == findings_.end()) findings_.push_back(finding);
}

std::size_t AuditDevice::offset(const Buffer& buffer) {
  const auto* const data = static_cast<const unsigned char*>(buffer.data);
  ZS_CHECK(buffer.bytes() == 0 ||
               (data >= allocator_.begin() && data + buffer.bytes() <= allocator_.begin() + allocator_.used()),
           "a buffer of {} bytes outside the audited range", buffer.bytes());
  return static_cast<std::size_t>(data - allocator_.begin());
}

bool AuditDevice::Part::is_same(const Bytes& a, const Bytes& b) const {
  return std::memcmp(a.data() + begin, b.data() + begin, bytes) == 0;
}

AuditDevice::Declaration AuditDevice::declaration_of(const OpInfo& info, const Buffer& scratch) {
  struct Range {
    std::size_t begin, end;
    unsigned char said;
  };
  std::vector<Range> ranges;
  std::set<std::size_t> bounds = {0, allocator_.used()};
  const auto say = [&](const Buffer& buffer, Said what) {
    if (buffer.bytes() == 0) return;
    const std::size_t begin = offset(buffer);
    ranges.push_back({begin, begin + static_cast<std::size_t>(buffer.bytes()), what});
    bounds.insert({ranges.back().begin, ranges.back().end});
  };
  for (const Buffer& buffer : info.reads) say(buffer, read);
  for (const Buffer& buffer : info.writes) {
    if (buffer.data != scratch.data || buffer.elems != scratch.elems) say(buffer, written);
  }
  say(scratch, scratch_bytes);
  Declaration result;
  for (auto bound = bounds.begin(); std::next(bound) != bounds.end(); ++bound) {
    Part part{*bound, *std::next(bound) - *bound, nothing};
    for (const Range& range : ranges) {
      if (range.begin <= part.begin && part.begin < range.end)
        part.said = static_cast<unsigned char>(part.said | range.said);
    }
    result.push_back(part);
  }
  return result;
}

AuditDevice::Bytes AuditDevice::filled(const Bytes& memory, const Declaration& declaration, Content undeclared,
                                       Content written_only) const {
  Bytes result = memory;
  for (const Part& part : declaration) {
    if (part.is(read)) continue;
    const Content content = part.said == nothing ? undeclared : written_only;
    if (content == Content::poison) std::memset(result.data() + part.begin, 0xff, part.bytes);
    if (content == Content::noise) std::memcpy(result.data() + part.begin, noise_.data() + part.begin, part.bytes);
  }
  return result;
}

AuditDevice::Bytes AuditDevice::run(const OpInfo& info, const Work& work, const Buffer& scratch, const Bytes& memory) {
  std::memcpy(allocator_.begin(), memory.data(), memory.size());
  context_.set_memory({scratch, {}});
  threw_ = false;
  try {
    work(context_);
  } catch (const Error& error) {
    threw_ = true;
    if (error.code() == ExitCode::internal) find(info, fmt::format("fails on other memory: {}", error.what()));
  }
  return Bytes(allocator_.begin(), allocator_.begin() + memory.size());
}

void AuditDevice::check_untouched(const OpInfo& info, const Declaration& declaration, const Bytes& before,
                                  const Bytes& after) {
  for (const Part& part : declaration) {
    if (part.is(written | scratch_bytes) || part.is_same(before, after)) continue;
    return find(info,
                part.said == nothing ? "writes what it does not declare" : "writes what it declares as read only");
  }
}

bool AuditDevice::same_is_written(const Declaration& declaration, const Bytes& a, const Bytes& b) {
  return std::all_of(declaration.begin(), declaration.end(),
                     [&](const Part& part) { return !part.is(written) || part.is_same(a, b); });
}

void AuditDevice::execute(const OpInfo& info, const Work& work, const Buffer& scratch) {
  constexpr int kTimes = 2;
  std::string key = info.name.substr(0, info.name.find(':'));
  for (const auto* buffers : {&info.reads, &info.writes}) {
    key += '|';
    for (const Buffer& buffer : *buffers) key += fmt::format(" {}", buffer.bytes());
  }
  const Bytes memory(allocator_.begin(), allocator_.begin() + allocator_.used());
  if (++times_[key] <= kTimes) audit(info, work, scratch);
  run(info, work, scratch, memory);
}

void AuditDevice::audit(const OpInfo& info, const Work& work, const Buffer& scratch) {
  audited_.insert(info.name.substr(0, info.name.find(':')));
  const Bytes memory(allocator_.begin(), allocator_.begin() + allocator_.used());
  const Declaration declaration = declaration_of(info, scratch);
  const auto run_filled = [&](Content undeclared, Content written_only) {
    const Bytes before = filled(memory, declaration, undeclared, written_only);
    Bytes after = run(info, work, scratch, before);
    check_untouched(info, declaration, before, after);
    return after;
  };
  const Bytes plain = run_filled(Content::as_it_is, Content::poison);
  if (!same_is_written(declaration, plain, run_filled(Content::as_it_is, Content::noise)))
    find(info, "reads, or leaves as it was, a part of what it declares as written only");
  for (const Content undeclared : {Content::poison, Content::noise}) {
    if (!same_is_written(declaration, plain, run_filled(undeclared, Content::poison)))
      find(info, "reads what it does not declare");
  }
  std::memcpy(allocator_.begin(), memory.data(), memory.size());
  audit_uses(info, work, scratch, declaration, plain);
}

/// Whether each buffer that is declared matters.
void AuditDevice::audit_uses(const OpInfo& info, const Work& work, const Buffer& scratch,
                             const Declaration& declaration, const Bytes& plain) {
  const Bytes before = filled(Bytes(allocator_.begin(), allocator_.begin() + plain.size()), declaration,
                              Content::as_it_is, Content::poison);
  Bytes ever_changed(plain.size(), 0);
  const auto note_changes = [&](const Bytes& after, const Bytes& from) {
    for (const Part& part : declaration) {
      if (!part.is(written) || part.is_same(after, from)) continue;
      for (std::size_t i = part.begin; i < part.begin + part.bytes; ++i) ever_changed[i] |= after[i] != from[i];
    }
  };
  note_changes(plain, before);
  for (std::size_t which = 0; which < info.reads.size(); ++which) {
    const Buffer& buffer = info.reads[which];
    bool is_read = buffer.bytes() == 0;
    for (int how = 0; how < kChanges; ++how) {
      Bytes changed = before;
      if (buffer.bytes() > 0) change(buffer, changed.data() + offset(buffer), (how + rank_) % kChanges);
      const Bytes after = run(info, work, scratch, changed);
      is_read = is_read || threw_ || !same_is_written(declaration, plain, after);
      note_changes(after, changed);
    }
    if (!is_read) find(info, fmt::format("declares as read, and does not read, buffer {}", which));
  }
  for (std::size_t which = 0; which < info.writes.size(); ++which) {
    const Buffer& buffer = info.writes[which];
    if (buffer.bytes() == 0 || buffer.data == scratch.data) continue;
    const auto* const begin = ever_changed.data() + offset(buffer);
    if (std::all_of(begin, begin + buffer.bytes(), [](unsigned char is) { return is == 0; }))
      find(info, fmt::format("declares as written, and does not write, buffer {}", which));
  }
}

}  // namespace zs::test
