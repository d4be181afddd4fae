// Log-probabilities that the reference gives to the sequences of a tokenised set, in a file of the data cache. They are
// found by the number of a document, so neither the order of training nor the packing matters.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/data/sequences.hpp"

namespace chassis {

// The sequences of one document.
struct ReferenceRecord {
  uint64_t document = 0;
  std::vector<ReferenceLogps> sequences;
  bool operator==(const ReferenceRecord&) const = default;
};

// The records as doubles, which ranks can add, and back. Integers below 2^53 and floats are exact as doubles.
std::vector<double> to_numbers(std::span<const ReferenceRecord> records);
std::vector<ReferenceRecord> records_from_numbers(std::span<const double> numbers);

// Short, for names of files and messages.
std::string reference_hash(const Json& key);

// The file, little-endian: 8 bytes of magic, a block with the header as JSON, blocks of records, and an empty block
// with the number of documents. A block is its number of bytes (u32), a CRC32C of them that continues that of the block
// before (u32), and these bytes. The header is {"key": …, "order": …}: the values follow from the key alone, up to
// rounding; the order is that of the blocks.
class ReferenceStore {
 public:
  // Reads the whole file. Throws a storage error if it is damaged or has another key, and names both hashes. Calls
  // `poll` regularly; it may throw.
  ReferenceStore(const std::string& path, const Json& key, uint64_t num_documents,
                 const std::function<void()>& poll = {});

  const std::string& path() const { return file_.path(); }
  uint64_t num_documents() const { return num_records_; }  // that have values
  // [any] The log-probabilities of a document's sequences. Throws a storage error if there are not that many.
  std::vector<ReferenceLogps> read(uint64_t document, size_t num_sequences) const;

 private:
  struct Place {
    uint64_t offset = 0;
    uint32_t num_bytes = 0;  // 0: no values
  };
  File file_;
  std::vector<Place> places_;  // by document
  uint64_t num_records_ = 0;
};

// Writes such a file under a temporary name, which an interrupted process leaves for the next one.
class ReferenceWriter {
 public:
  static constexpr const char* kDirectoryHint = "remove the directory, or name another data.cache_dir";

  // Continues `path`.unfinished if it has the same key and order; `damage` is then why blocks were left out, if any.
  // If another process writes it, uses a name of its own, which is removed on failure.
  ReferenceWriter(std::string path, const Json& key, const Json& order);
  ~ReferenceWriter();
  ReferenceWriter(const ReferenceWriter&) = delete;
  ReferenceWriter& operator=(const ReferenceWriter&) = delete;

  // Blocks that are there already.
  uint64_t num_blocks() const { return ends_.size() - 1; }
  // Why the blocks of an interrupted process, if there are any, are not all used; empty if they are.
  const std::string& why_not_continued() const { return why_not_; }
  // True if another process writes the file that this one would continue.
  bool is_elsewhere() const { return is_private_; }
  // That of the file which this process or another one writes.
  uint64_t inode() const { return inode_; }
  // Forgets the blocks after the first `num_blocks`.
  void keep(uint64_t num_blocks);
  // A block.
  void add(std::span<const ReferenceRecord> records);
  // Writes the end, and gives the file its name. No other process removes it as long as this object lives.
  void finish();

 private:
  struct End {
    uint64_t offset = 0;
    uint32_t checksum = 0;
    uint64_t num_documents = 0;
  };
  bool lock_shared();
  void read_unfinished(const Json& header);
  void begin(const Json& header);
  void append(std::string_view payload, uint64_t num_documents);
  void give_name();
  void write_again();

  std::string path_, name_;  // that of the finished file; the temporary one
  Json key_;
  File file_;
  std::vector<End> ends_;  // of the header and of each block
  std::string why_not_;
  bool is_private_ = false, is_finished_ = false;
  uint64_t inode_ = 0;
};

// The files of a set whose path begins with `prefix`, newest first.
std::vector<std::string> kept_references(const std::string& prefix);
// Removes all but the newest `num_kept` of the finished ones and of the unfinished ones. Those that a process writes,
// or has just written, stay.
void remove_old_references(const std::string& prefix, size_t num_kept);
// The key in a file; nothing if it cannot be read.
std::optional<Json> key_of_reference(const std::string& path);

}  // namespace chassis
