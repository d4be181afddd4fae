// The base of members that read files of rows, such as tables, as one JSON object per row.
#pragma once

#include <memory>
#include <string_view>

#include "chassis/kind/rows.h"
#include "chassis/member.hpp"
#include "chassis/sized.hpp"

CHASSIS_SDK_BEGIN

// Receives rows in the order of the file.
class RowSink {
 public:
  explicit RowSink(const chassis_row_sink_t& raw) : raw_(raw) {}
  // One JSON object in UTF-8, without line breaks between its values; to_json() of options.hpp writes a string.
  void row(std::string_view json) {
    raw_.row(&raw_, str(json));
    ++num_rows_;
  }
  uint64_t num_rows() const noexcept { return num_rows_; }

 private:
  const chassis_row_sink_t& raw_;
  uint64_t num_rows_ = 0;
};

// An open file, used by one thread at a time. Exceptions have the codes of chassis/kind/rows.h.
class RowFile {
 public:
  virtual ~RowFile() = default;
  virtual int64_t num_rows() const { return -1; }  // -1: not known before the end
  // Gives at least 1 and at most max_rows rows, or none at the end.
  virtual void next(uint64_t max_rows, RowSink& out) = 0;
  // The bytes of the file that all rows so far came from; never decreases.
  virtual uint64_t num_bytes_read() const = 0;
};

// The manifest line "file=*.csv" names the files of the member.
class Rows : public Member {
 public:
  static constexpr std::string_view kKind = "rows";
  using Member::Member;

  // [any] Several files may be open at once.
  virtual std::unique_ptr<RowFile> open(std::string_view path) const = 0;

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    static constexpr chassis_rows_t kTable = {sizeof(chassis_rows_t), 0, &open_entry, &next_entry, &close_entry};
    return id == CHASSIS_ROWS_ID ? &kTable : nullptr;
  }

 private:
  template <typename Body>
  static chassis_status_t* call(chassis_instance* self, Body&& body) noexcept {
    const Rows& rows = member_of<Rows>(self);
    return guard(rows.host().table(), [&] { body(rows); });
  }
  static chassis_status_t* open_entry(chassis_instance* self, chassis_str_t path, chassis_row_file_info_t* out,
                                      void** file) noexcept {
    return call(self, [&](const Rows& rows) {
      std::unique_ptr<RowFile> opened = rows.open(text_of(path));
      write_sized<chassis_row_file_info_t>({0, 0, opened->num_rows()}, out);
      *file = opened.release();
    });
  }
  static chassis_status_t* next_entry(chassis_instance* self, void* file, uint64_t max_rows,
                                      const chassis_row_sink_t* sink, chassis_rows_read_t* out) noexcept {
    return call(self, [&](const Rows&) {
      RowFile& opened = *static_cast<RowFile*>(file);
      RowSink rows(*sink);
      opened.next(max_rows, rows);
      write_sized<chassis_rows_read_t>({0, 0, rows.num_rows(), opened.num_bytes_read()}, out);
    });
  }
  static void close_entry(chassis_instance*, void* file) noexcept { delete static_cast<RowFile*>(file); }
};

CHASSIS_SDK_END
