// Shared by the tests of rows: reads files, parses one row, and packs texts.
#pragma once

#define ZLIB_CONST
#include <zlib.h>
#include <zstd.h>

#include <memory>
#include <string>
#include <vector>

#include "host/data/record_reader.hpp"
#include "tests/host/data/support.hpp"

namespace chassis {

inline DataSetConfig set_of(DataFormat format, const std::string& path = "") {
  DataSetConfig set = text_set(path);
  set.format = format;
  return set;
}

inline std::vector<RawRow> rows_of(const std::string& path, const DataSetConfig& config, ReadNotes* notes = nullptr) {
  const auto reader = open_rows(path, config);
  std::vector<RawRow> rows;
  for (RawRow row; reader->next(row);) rows.push_back(row);
  EXPECT_EQ(reader->num_bytes_read(), File::open_read(path).size());
  if (notes) *notes = reader->notes();
  return rows;
}

// The bytes of the rows; format text reads all text files.
inline std::vector<std::string> row_texts(const std::string& path, ReadNotes* notes = nullptr) {
  std::vector<std::string> texts;
  for (const RawRow& row : rows_of(path, text_set(path), notes)) texts.push_back(row.bytes);
  return texts;
}

inline Record parse_row(const DataSetConfig& config, const std::string& json, ReadNotes* notes = nullptr,
                        int64_t vocab_size = 0) {
  const auto parser = make_row_parser(config, vocab_size);
  RawRow row;
  row.bytes = json;
  row.line = 7;
  Record record = parser->parse(row, "a.jsonl");
  if (notes) *notes = parser->notes();
  return record;
}

inline std::string gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(::deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(::deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<const Bytef*>(text.data());
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(packed.size() - stream.avail_out);
  ::deflateEnd(&stream);
  return packed;
}

inline std::string zstd(const std::string& text) {
  std::string packed(::ZSTD_compressBound(text.size()), '\0');
  packed.resize(::ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

}  // namespace chassis
