// Columns of a tokenised set: the bytes that documents bring for fields of the batch, such as images.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/file.hpp"
#include "host/data/document.hpp"
#include "host/data/store_output.hpp"

namespace chassis {

struct ColumnFacts {
  std::string name;
  uint64_t num_bytes = 0;  // of all documents
};

// Column n has the files column-n.bin, with the bytes of all documents, and column-n.ends.bin, with one u64 per
// document: where its bytes end.
class ColumnStore {
 public:
  ColumnStore(const std::string& folder, const std::vector<ColumnFacts>& facts, uint64_t num_documents);

  bool empty() const { return columns_.empty(); }
  // Those that the document has.
  DocumentColumns read(uint64_t document) const;
  bool has(std::string_view name) const;
  // One of them; empty if the document does not have it.
  std::vector<std::byte> read(uint64_t document, std::string_view name) const;
  // By file name.
  std::vector<std::pair<std::string, const File*>> files() const;

 private:
  struct Column {
    ColumnFacts facts;
    File values, ends;
  };
  static std::vector<std::byte> read(const Column& column, uint64_t document);

  std::vector<Column> columns_;
};

class ColumnWriter {
 public:
  explicit ColumnWriter(std::string folder) : folder_(std::move(folder)) {}
  // Adds the columns of document number `index`; documents come in order.
  void add(const DocumentColumns& columns, uint64_t index);
  // Completes the files, and adds their checksums.
  std::vector<ColumnFacts> finish(std::map<std::string, uint32_t>& checksums);

 private:
  struct Column {
    ColumnFacts facts;
    StoreOutput values, ends;
  };
  // A column without bytes in the documents before `index`.
  void begin(const std::string& name, uint64_t index);

  std::string folder_;
  std::vector<Column> columns_;
};

}  // namespace chassis
