// Reads Megatron's indexed data sets: NAME.bin has the ids, NAME.idx says where sequences and documents begin. A row is
// a document. The format is that of Megatron-LM's megatron/core/datasets/indexed_dataset.py, all little-endian:
//   "MMIDIDX\0\0", version u64 = 1, type u8, number of sequences u64, number of document bounds u64,
//   lengths i32[sequences] in ids, pointers i64[sequences] in bytes, document bounds i64[bounds] in sequences,
//   and with several modes i8[sequences].
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/file.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/row_readers.hpp"
#include "host/data/token_bytes.hpp"

namespace chassis {
namespace {

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kIndexHeaderBytes = 34;

// Numbers of a file in order, read in blocks.
template <class T>
class Numbers {
 public:
  Numbers(const File* file, uint64_t offset, uint64_t count) : file_(file), offset_(offset), num_left_(count) {}

  bool empty() const { return num_left_ == 0; }
  T next() {
    if (at_ == block_.size()) refill();
    --num_left_;
    return block_[at_++];
  }

 private:
  void refill() {
    block_.resize(static_cast<size_t>(std::min<uint64_t>(num_left_, 4096)));
    file_->pread_exact(block_.data(), block_.size() * sizeof(T), offset_);
    offset_ += block_.size() * sizeof(T);
    at_ = 0;
  }

  const File* file_;
  uint64_t offset_, num_left_;
  std::vector<T> block_;
  size_t at_ = 0;
};

struct Index {
  TokenType type;
  uint64_t num_sequences, num_bounds;

  uint64_t lengths() const { return kIndexHeaderBytes; }
  uint64_t pointers() const { return lengths() + num_sequences * 4; }
  uint64_t bounds() const { return pointers() + num_sequences * 8; }
  uint64_t end() const { return bounds() + num_bounds * 8; }
};

class MegatronRows final : public RowReader {
 public:
  MegatronRows(const std::string& path, const std::string& index_path)
      : data_(File::open_read(path)),
        index_file_(File::open_read(index_path)),
        index_(read_index()),
        lengths_(&index_file_, index_.lengths(), index_.num_sequences),
        bounds_(&index_file_, index_.bounds(), index_.num_bounds) {
    if (const int64_t first = bounds_.next(); first != 0)
      throw index_error(fmt::format("the first document begins at sequence {}, not at 0", first));
  }

  bool next(RawRow& row) override {
    if (!is_checked_) check_sizes();
    is_checked_ = true;
    if (bounds_.empty()) return false;
    const uint64_t end = next_bound();
    row.kind = RowKind::kTokens;
    row.line = ++num_documents_;
    row.bytes.clear();
    for (; sequence_ < end; ++sequence_) {
      const auto num_ids = static_cast<uint64_t>(lengths_.next());
      if (row.bytes.size() + num_ids * 4 > kMaxDocumentBytes)
        throw too_long_error(line_position(data_.path(), row.line), "document", row.bytes.size() + num_ids * 4);
      append_ids(row.bytes, data_, offset_, num_ids, index_.type);
      offset_ += num_ids * index_.type.num_bytes;
    }
    return true;
  }

  uint64_t num_bytes_read() const override { return offset_; }
  void set_poll(std::function<void()> poll) override { poll_ = std::move(poll); }

 private:
  Error index_error(std::string message) const {
    return Error(ExitCode::kConfig, {index_file_.path(), 0, 0}, std::move(message));
  }

  Index read_index() const {
    const uint64_t size = index_file_.size();
    std::array<char, kIndexHeaderBytes> header;
    if (size < header.size())
      throw index_error(fmt::format("the index has {} bytes, but its header alone has {}", size, header.size()));
    index_file_.pread_exact(header.data(), header.size(), 0);
    if (std::string_view(header.data(), kIndexMagic.size()) != kIndexMagic) {
      throw index_error("not an index of Megatron: it does not begin with \"MMIDIDX\"")
          .hint("if the .bin file is a shard of llm.c, move the .idx file away");
    }
    const auto version = read_number<uint64_t>(header.data() + 9);
    if (version != 1) throw index_error(fmt::format("the index has version {}, this program reads version 1", version));
    const auto code = static_cast<unsigned char>(header[17]);
    const std::optional<TokenType> type = token_type_of_megatron(code);
    if (!type) {
      throw index_error(
          fmt::format("the ids have type {}{}; known types are 1 (u8), 2 (i8), 3 (i16), 4 (i32), 5 (i64) and 8 "
                      "(u16)",
                      code, code == 6 || code == 7 ? ", floating point" : ""));
    }
    const Index index{*type, read_number<uint64_t>(header.data() + 18), read_number<uint64_t>(header.data() + 26)};
    // Checked before they are multiplied.
    if (index.num_sequences > size / 12 || index.num_bounds > size / 8 ||
        (size != index.end() && size != index.end() + index.num_sequences)) {
      throw index_error(fmt::format("the index has {} bytes, but {} sequences and {} document bounds take {}", size,
                                    index.num_sequences, index.num_bounds,
                                    index.num_sequences > size || index.num_bounds > size
                                        ? std::string("more")
                                        : fmt::format("{}", index.end())))
          .hint("copy the file again");
    }
    if (index.num_bounds == 0) throw index_error("the index has no document bounds; the first should be 0");
    return index;
  }

  // Checks that sequences are contiguous, so that the data file has exactly their bytes.
  void check_sizes() const {
    Numbers<int32_t> lengths(&index_file_, index_.lengths(), index_.num_sequences);
    Numbers<int64_t> pointers(&index_file_, index_.pointers(), index_.num_sequences);
    uint64_t num_bytes = 0;
    for (uint64_t i = 0; i < index_.num_sequences; ++i) {
      if (poll_ && i % 65536 == 0) poll_();
      const int32_t length = lengths.next();
      const int64_t pointer = pointers.next();
      if (length < 0) throw index_error(fmt::format("sequence {} has {} ids", i, length));
      if (pointer < 0 || static_cast<uint64_t>(pointer) != num_bytes) {
        throw index_error(
            fmt::format("sequence {} begins at byte {}, but those before it have {} bytes", i, pointer, num_bytes));
      }
      num_bytes += static_cast<uint64_t>(length) * index_.type.num_bytes;
    }
    if (const uint64_t size = data_.size(); size != num_bytes) {
      throw Error(ExitCode::kConfig, {data_.path(), 0, 0},
                  fmt::format("the file has {} bytes, but {} says {}", size, index_file_.path(), num_bytes))
          .hint("the two files do not belong together, or one is not complete");
    }
  }

  uint64_t next_bound() {
    const int64_t bound = bounds_.next();
    const bool last = bounds_.empty();
    if (bound < 0 || static_cast<uint64_t>(bound) < sequence_ || static_cast<uint64_t>(bound) > index_.num_sequences) {
      throw index_error(fmt::format("document {} ends at sequence {}; it begins at {}, and there are {}",
                                    num_documents_ + 1, bound, sequence_, index_.num_sequences));
    }
    if (last && static_cast<uint64_t>(bound) != index_.num_sequences) {
      throw index_error(
          fmt::format("the documents have {} sequences, but the index has {}", bound, index_.num_sequences));
    }
    return static_cast<uint64_t>(bound);
  }

  File data_, index_file_;
  Index index_;
  Numbers<int32_t> lengths_;
  Numbers<int64_t> bounds_;
  uint64_t sequence_ = 0, offset_ = 0, num_documents_ = 0;
  bool is_checked_ = false;
  std::function<void()> poll_;
};

}  // namespace

std::unique_ptr<RowReader> open_megatron_rows(const std::string& path, const std::string& index_path) {
  return std::make_unique<MegatronRows>(path, index_path);
}

}  // namespace chassis
