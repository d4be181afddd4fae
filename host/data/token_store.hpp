// A tokenised data set on disk: reads any piece of any document, in memory that does not depend on the set's size.
// Rationale: read by pread and not mapped, because mapped pages count as this process's memory, and because a mapped
// file that shrinks kills the process instead of giving an error.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/data/document.hpp"
#include "host/data/document_columns.hpp"
#include "host/data/store_output.hpp"

namespace chassis {

// The properties of a set that are known without reading its tokens. Stored in manifest.json.
struct TokenStoreFacts {
  int64_t id_bytes = 4;  // 2 or 4: the width of an id in ids.bin and labels.bin
  uint64_t num_documents = 0;
  uint64_t num_tokens = 0;
  // Labels that are not masked and have a token before them in their document.
  uint64_t num_trained_tokens = 0;
  uint64_t longest_document = 0;
  bool has_labels = false;
  int32_t max_id = -1;
  uint64_t max_id_document = 0;
  // Identity of the ids and labels, document by document.
  std::string content_hash;
  std::map<std::string, uint32_t> checksums;  // CRC32C of each file, by name
  ReadNotes notes;
  uint64_t num_rows = 0;                      // in all files, used or not
  std::map<std::string, uint64_t> dropped;    // reason → rows that became no document
  std::vector<std::string> first_dropped;     // "chat.jsonl:17: reason", of at most 5 rows
  std::vector<std::string> content_of_files;  // a hash of the rows of each file
  std::vector<ColumnFacts> columns;
  uint64_t num_dropped() const {
    uint64_t sum = 0;
    for (const auto& [reason, rows] : dropped) sum += rows;
    return sum;
  }
};

// A document's place among all tokens of the set.
struct DocumentSpan {
  uint64_t begin = 0;
  uint64_t length = 0;
  uint64_t index = 0;  // its number in the set
};

// Files of a store: ids.bin and, if any label differs from its id, labels.bin, one entry per token; documents.bin, two
// u64 per document (first token, origin) and a last entry; those of columns; manifest.json. Little-endian.
class TokenStore {
 public:
  // Throws a storage error if the size of a file differs from the manifest.
  TokenStore(const std::string& folder, const TokenStoreFacts& facts, std::vector<std::string> source_files);

  // Reads every file, and throws a storage error at the first whose checksum differs from the manifest. Calls `poll`
  // every few MiB; it may throw.
  void verify(const std::function<void()>& poll = {}) const;

  const TokenStoreFacts& facts() const { return facts_; }
  uint64_t num_documents() const { return facts_.num_documents; }
  const std::vector<std::string>& source_files() const { return source_files_; }

  DocumentSpan document(uint64_t index) const;
  // Documents from number `first` on.
  void read_documents(uint64_t first, std::span<DocumentSpan> documents) const;
  // The file and line that the document came from.
  SourcePosition origin(uint64_t index) const;
  // Values from token number `token` on, counted over the whole set.
  void read_ids(uint64_t token, std::span<int32_t> ids) const;
  void read_labels(uint64_t token, std::span<int32_t> labels) const;
  // Columns of a document; none if the set has none.
  const ColumnStore& columns() const { return columns_; }
  // The parts of a document that an objective reads. has_sequences(): all documents of the set have them.
  bool has_sequences() const { return has_sequences_; }
  std::vector<SequenceFacts> sequences(const DocumentSpan& document) const;
  // The number of labels of `count` tokens that are not masked. Reads nothing if the set has no labels of its own.
  uint64_t count_trained(uint64_t token, uint64_t count) const;

  struct LongDocuments {
    uint64_t count = 0;
    uint64_t first = 0;       // index of the first one
    uint64_t num_tokens = 0;  // in all of them
  };
  // Documents with more tokens than `limit`. Reads documents.bin unless no document is longer.
  LongDocuments longer_than(uint64_t limit, const std::function<void()>& poll = {}) const;

 private:
  void read(const File& file, uint64_t token, std::span<int32_t> values) const;
  TokenStoreFacts facts_;
  std::vector<std::string> source_files_;
  File ids_, labels_, documents_;
  ColumnStore columns_;
  bool has_sequences_;
};

// Writes a store sequentially, through small buffers.
class TokenStoreWriter {
 public:
  // `folder` must exist and be empty. Ids below 65535 fit into two bytes.
  TokenStoreWriter(std::string folder, int64_t id_bytes);
  void add(const Document& document, uint64_t file_index);
  void add_notes(const ReadNotes& notes);
  void add_dropped(const std::string& reason, const SourcePosition& where);
  // Rows of a file, and the sum of their hashes.
  void add_rows(size_t file, uint64_t num_rows, uint64_t content_hash);
  // When this returns, everything is on disk except the manifest, which the caller writes.
  TokenStoreFacts finish();
  const TokenStoreFacts& facts() const { return facts_; }

 private:
  void append_values(StoreOutput& output, std::span<const int32_t> values);
  void append_origin(uint64_t origin);
  void begin_labels();

  std::string folder_;
  TokenStoreFacts facts_;
  StoreOutput ids_, documents_;
  ColumnWriter columns_;
  std::vector<StoreOutput> labels_;  // empty until a label differs from its id, then one
  uint64_t hash_[2];
  std::vector<uint64_t> content_;  // for each file
};

Json to_json(const TokenStoreFacts& facts);
TokenStoreFacts token_store_facts_from_json(const Json& json, const std::string& where);

}  // namespace chassis
