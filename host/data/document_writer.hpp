// The last stage of the preparation of a set, which sees all documents in their order: adds mismatches if the objective
// needs them, divides pairs into labelled answers if they are split, and writes the documents.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/data/data_config.hpp"
#include "host/data/document.hpp"
#include "host/data/mismatches.hpp"
#include "host/data/token_store.hpp"

namespace chassis {

class DocumentWriter {
 public:
  // `data` as in PrepareOptions. The arguments must outlive this object.
  DocumentWriter(const DataSetConfig& config, const std::vector<std::string>& files, const DataConfig* data,
                 TokenStoreWriter& writer);
  DocumentWriter(const DocumentWriter&) = delete;
  DocumentWriter& operator=(const DocumentWriter&) = delete;

  void add(Document&& document, size_t file);
  // Writes the documents that were held back, and notes what was changed.
  void finish();

 private:
  void write(Document&& document, size_t file);
  void write_unit(Document&& document, size_t file);

  const std::vector<std::string>& files_;
  TokenStoreWriter& writer_;
  bool counts_classes_ = false;          // documents are labelled answers
  uint64_t num_good_ = 0, num_bad_ = 0;  // answers
  std::optional<Mismatches> mismatches_;
  size_t limit_ = 0;  // tokens, to which labelled documents are cut; 0: they are not
  uint64_t num_cut_ = 0;
};

}  // namespace chassis
