// Sums up what readers skipped.
#include "host/data/document.hpp"

namespace chassis {

void ReadNotes::add(const ReadNotes& more) {
  constexpr size_t kMaxNames = 32;
  num_empty_documents += more.num_empty_documents;
  num_blank_lines += more.num_blank_lines;
  for (const auto& [what, count] : more.changes) changes[what] += count;
  for (const auto& [name, rows] : more.unused_columns) {
    const bool is_listed = unused_columns.contains(name) || unused_columns.size() < kMaxNames;
    unused_columns[is_listed ? name : "(others)"] += rows;
  }
}

}  // namespace chassis
