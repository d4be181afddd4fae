// The document that a row of a data set becomes, and the counts of what was skipped or changed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "host/base/batch_fields.hpp"
#include "host/data/sequences.hpp"

namespace chassis {

struct Document {
  std::vector<int32_t> ids;
  // Empty: every token is trained. Otherwise one per id and not shifted: labels[t] belongs to ids[t].
  std::vector<int32_t> labels;
  uint64_t line = 0;  // its first line, from 1
  DocumentColumns columns = {};
  // Its parts, which attend only to themselves. Empty: the document is one, and no objective reads it.
  std::vector<SequenceFacts> sequences = {};
};

// Counts of what was skipped, for the counted warnings in the summary.
struct ReadNotes {
  uint64_t num_empty_documents = 0;
  uint64_t num_blank_lines = 0;                    // without those that end a paragraph
  std::map<std::string, uint64_t> unused_columns;  // name → rows, for at most 32 names
  std::map<std::string, uint64_t> changes;         // change or mask in documents → how often

  void add(const ReadNotes& more);
};

}  // namespace chassis
