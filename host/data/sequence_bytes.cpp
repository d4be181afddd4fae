// A header with version and count; then, for each sequence, its numbers and its lists. Little-endian, without padding.
#include "host/data/sequence_bytes.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "host/base/error.hpp"

namespace chassis {
namespace {

static_assert(std::endian::native == std::endian::little, "stores are little-endian");

constexpr uint32_t kSequencesVersion = 2;

struct SequenceHeader {
  uint32_t role, num_targets;
  int64_t length;
  double margin;
  uint64_t num_old_logps;
  uint64_t num_teacher_counts, num_teacher_entries;
};
static_assert(sizeof(SequenceHeader) == 48, "no padding");

class SequenceReader {
 public:
  explicit SequenceReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  T number() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take(1, sizeof value).data(), sizeof value);
    return value;
  }
  template <typename T>
  std::vector<T> list(uint64_t count) {
    const std::span<const std::byte> bytes = take(count, sizeof(T));
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  bool is_at_end() const { return rest_.empty(); }

 private:
  std::span<const std::byte> take(uint64_t count, size_t size) {
    if (count > rest_.size() / size) throw storage_error("the facts of sequences end too early");
    const std::span<const std::byte> bytes = rest_.first(static_cast<size_t>(count) * size);
    rest_ = rest_.subspan(bytes.size());
    return bytes;
  }

  std::span<const std::byte> rest_;
};

}  // namespace

std::vector<std::byte> sequence_bytes(std::span<const SequenceFacts> sequences) {
  std::vector<std::byte> bytes;
  const auto append = [&](const void* data, size_t num_bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), from, from + num_bytes);
  };
  const uint32_t start[] = {kSequencesVersion, static_cast<uint32_t>(sequences.size())};
  append(start, sizeof start);
  for (const SequenceFacts& facts : sequences) {
    const SequenceHeader header{static_cast<uint32_t>(facts.role),
                                static_cast<uint32_t>(facts.targets.size()),
                                facts.length,
                                facts.margin,
                                facts.old_logps.size(),
                                facts.teacher.counts.size(),
                                facts.teacher.ids.size()};
    append(&header, sizeof header);
    const auto append_list = [&](const auto& values) { append(values.data(), values.size() * sizeof values[0]); };
    append_list(facts.targets);
    append_list(facts.old_logps);
    append_list(facts.teacher.counts);
    append_list(facts.teacher.ids);
    append_list(facts.teacher.logps);
  }
  return bytes;
}

std::vector<SequenceFacts> sequences_from_bytes(std::span<const std::byte> bytes) {
  SequenceReader reader(bytes);
  if (const auto version = reader.number<uint32_t>(); version != kSequencesVersion)
    throw storage_error(
        fmt::format("the facts of sequences have version {}, and this program reads {}", version, kSequencesVersion));
  std::vector<SequenceFacts> sequences;
  for (auto left = reader.number<uint32_t>(); left > 0; --left) {
    const auto header = reader.number<SequenceHeader>();
    if (header.role > static_cast<uint32_t>(SequenceRole::kMismatch) || header.length <= 0)
      throw storage_error(fmt::format("a sequence has role {} and {} tokens", header.role, header.length));
    SequenceFacts& facts = sequences.emplace_back();
    facts.role = static_cast<SequenceRole>(header.role);
    facts.length = header.length;
    facts.margin = header.margin;
    facts.targets = reader.list<double>(header.num_targets);
    facts.old_logps = reader.list<double>(header.num_old_logps);
    facts.teacher.counts = reader.list<uint32_t>(header.num_teacher_counts);
    facts.teacher.ids = reader.list<int32_t>(header.num_teacher_entries);
    facts.teacher.logps = reader.list<float>(header.num_teacher_entries);
    const auto& counts = facts.teacher.counts;
    if (std::accumulate(counts.begin(), counts.end(), uint64_t{0}) != header.num_teacher_entries)
      throw storage_error(fmt::format("the teacher's entries of a sequence are {}, and those of its tokens are not",
                                      header.num_teacher_entries));
  }
  if (!reader.is_at_end()) throw storage_error("there are bytes after the facts of sequences");
  return sequences;
}

}  // namespace chassis
