// Cuts a file into rows: the first of the two stages of reading (record_reader.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "host/data/document.hpp"

namespace chassis {

// The content of the bytes of a row: a JSON object, a text as it is, or ids as little-endian i32.
enum class RowKind { kJson, kText, kTokens };

// One row of a file for parse().
struct RawRow {
  RowKind kind = RowKind::kJson;
  std::string bytes;
  uint64_t line = 0;      // its first line, from 1; in binary files, the number of the document or row
  bool is_table = false;  // for JSON: the keys are a table's columns, so that null may stand for an absent key
  std::string_view maker;  // for messages: the plugin that made the JSON; it outlives the row. Empty: the host did
};

// Cuts one file into rows. Used by one thread.
class RowReader {
 public:
  virtual ~RowReader() = default;
  // False at the end. Blank lines are skipped and counted.
  virtual bool next(RawRow& row) = 0;
  // Bytes of the file on disk, compressed or not.
  virtual uint64_t num_bytes_read() const = 0;
  // Called at least once for every block that is read; may throw to end a loop over a long file.
  virtual void set_poll(std::function<void()>) {}
  const ReadNotes& notes() const { return notes_; }

 protected:
  void note_byte_order_mark() { notes_.changes["byte order marks at the beginning of files are skipped"] = 1; }

  ReadNotes notes_;
};

}  // namespace chassis
