// Reads the shards of llm.c: 256 numbers i32, of which the first says what the ids are and the third how many follow,
// and then the ids (dev/data/data_common.py there). llm.c writes an end-of-text id in front of each document, so a row
// is that id and what follows up to the next one. A shard may begin in the middle of a document.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "host/base/file.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/row_readers.hpp"
#include "host/data/token_bytes.hpp"

namespace chassis {
namespace {

constexpr uint64_t kShardHeaderBytes = 256 * 4;
constexpr uint64_t kBlockIds = uint64_t{64} << 10;

struct ShardType {
  int32_t magic, version;
  TokenType token;
  int32_t separator;  // the id in front of each document
  std::string_view name;
};

constexpr std::array<ShardType, 2> kShardTypes{
    {{20240520, 1, {2, false}, 50256, "GPT-2"}, {20240801, 7, {4, false}, 128000, "Llama 3"}}};

class ShardRows final : public RowReader {
 public:
  explicit ShardRows(const std::string& path) : file_(File::open_read(path)), type_(read_header()) {}

  bool next(RawRow& row) override {
    row.kind = RowKind::kTokens;
    row.line = num_documents_ + 1;
    row.bytes.clear();
    while (at_ < block_.size() || refill()) {
      const size_t num_ids = ids_before_separator(row.bytes.empty());
      row.bytes.append(block_, at_, num_ids * 4);
      at_ += num_ids * 4;
      if (row.bytes.size() > kMaxDocumentBytes) {
        throw too_long_error(line_position(file_.path(), row.line), "document")
            .hint(fmt::format("documents are expected to begin with id {} of {}; if yours do not, write .jsonl rows "
                              "with input_ids",
                              type_.separator, type_.name));
      }
      if (at_ < block_.size()) break;
    }
    num_documents_ += !row.bytes.empty();
    return !row.bytes.empty();
  }

  void set_poll(std::function<void()> poll) override { poll_ = std::move(poll); }
  uint64_t num_bytes_read() const override { return kShardHeaderBytes + num_ids_read_ * type_.token.num_bytes; }

 private:
  Error error(std::string message) const { return Error(ExitCode::kConfig, {file_.path(), 0, 0}, std::move(message)); }

  ShardType read_header() {
    const uint64_t size = file_.size();
    std::array<int32_t, 3> header{};
    if (size >= sizeof header) file_.pread_exact(header.data(), sizeof header, 0);
    const auto type = std::find_if(kShardTypes.begin(), kShardTypes.end(),
                                   [&](const ShardType& known) { return known.magic == header[0]; });
    if (type == kShardTypes.end()) {
      throw error(
          fmt::format("neither a data set of Megatron, whose .idx file would be next to it, nor a shard of llm.c, "
                      "which begins with {} or {}: the file has {} bytes and begins with {}",
                      kShardTypes[0].magic, kShardTypes[1].magic, size, header[0]));
    }
    if (header[1] != type->version) {
      throw error(fmt::format("the shard has version {}, this program reads version {} of {}", header[1], type->version,
                              type->name));
    }
    const uint64_t wanted = kShardHeaderBytes + static_cast<uint64_t>(std::max(header[2], 0)) * type->token.num_bytes;
    if (header[2] < 0 || size != wanted) {
      throw error(
          fmt::format("the shard has {} bytes, but its header says {} ids, which take {}", size, header[2], wanted))
          .hint("copy or download the file again");
    }
    num_ids_ = static_cast<uint64_t>(header[2]);
    return *type;
  }

  bool refill() {
    const uint64_t count = std::min(kBlockIds, num_ids_ - num_ids_read_);
    if (count == 0) return false;
    if (poll_) poll_();
    block_.clear();
    at_ = 0;
    append_ids(block_, file_, num_bytes_read(), count, type_.token);
    num_ids_read_ += count;
    return true;
  }

  // Counts the ids of the block from at_ to the next separator. The separator with which a document begins belongs to
  // it.
  size_t ids_before_separator(bool begins) const {
    const size_t num_ids = (block_.size() - at_) / 4;
    for (size_t i = begins ? 1 : 0; i < num_ids; ++i) {
      if (read_number<int32_t>(block_.data() + at_ + i * 4) == type_.separator) return i;
    }
    return num_ids;
  }

  File file_;
  uint64_t num_ids_ = 0, num_ids_read_ = 0, num_documents_ = 0;
  ShardType type_;  // after the numbers, which its initialiser sets
  std::string block_;
  size_t at_ = 0;  // in bytes
  std::function<void()> poll_;
};

}  // namespace

std::unique_ptr<RowReader> open_shard_rows(const std::string& path) { return std::make_unique<ShardRows>(path); }

std::unique_ptr<RowReader> open_token_rows(const std::string& path) {
  const std::string index_path = path.substr(0, path.size() - std::string_view(".bin").size()) + ".idx";
  if (path_kind(index_path) == PathKind::kAbsent) return open_shard_rows(path);
  return open_megatron_rows(path, index_path);
}

}  // namespace chassis
