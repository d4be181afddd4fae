// Appends the bytes of each document, and finds them again by where they end.
#include "host/data/document_columns.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "host/base/error.hpp"

namespace chassis {
namespace {

std::string values_file(size_t column) { return fmt::format("column-{}.bin", column); }
std::string ends_file(size_t column) { return fmt::format("column-{}.ends.bin", column); }

}  // namespace

ColumnStore::ColumnStore(const std::string& folder, const std::vector<ColumnFacts>& facts, uint64_t num_documents) {
  for (size_t i = 0; i < facts.size(); ++i) {
    Column& column = columns_.emplace_back();
    column.facts = facts[i];
    column.values = File::open_read(folder + "/" + values_file(i));
    require_size(column.values, column.facts.num_bytes);
    column.ends = File::open_read(folder + "/" + ends_file(i));
    require_size(column.ends, num_documents * sizeof(uint64_t));
  }
}

std::vector<std::byte> ColumnStore::read(const Column& column, uint64_t document) {
  uint64_t range[2] = {0, 0};
  if (document == 0)
    column.ends.pread_exact(&range[1], sizeof range[1], 0);
  else
    column.ends.pread_exact(range, sizeof range, (document - 1) * sizeof range[0]);
  const auto [begin, end] = range;
  if (begin > end || end > column.facts.num_bytes)
    throw storage_error(fmt::format("{}: document {} spans bytes {} to {} of {}", column.ends.path(), document, begin,
                                    end, column.facts.num_bytes))
        .hint("remove the folder; the program makes it again");
  std::vector<std::byte> bytes(end - begin);
  if (!bytes.empty()) column.values.pread_exact(bytes.data(), bytes.size(), begin);
  return bytes;
}

DocumentColumns ColumnStore::read(uint64_t document) const {
  DocumentColumns out;
  for (const Column& column : columns_)
    if (std::vector<std::byte> bytes = read(column, document); !bytes.empty())
      out[column.facts.name] = std::move(bytes);
  return out;
}

bool ColumnStore::has(std::string_view name) const {
  return std::ranges::any_of(columns_, [&](const Column& column) { return column.facts.name == name; });
}

std::vector<std::byte> ColumnStore::read(uint64_t document, std::string_view name) const {
  for (const Column& column : columns_)
    if (column.facts.name == name) return read(column, document);
  return {};
}

std::vector<std::pair<std::string, const File*>> ColumnStore::files() const {
  std::vector<std::pair<std::string, const File*>> out;
  for (size_t i = 0; i < columns_.size(); ++i) {
    out.emplace_back(values_file(i), &columns_[i].values);
    out.emplace_back(ends_file(i), &columns_[i].ends);
  }
  return out;
}

void ColumnWriter::begin(const std::string& name, uint64_t index) {
  const size_t number = columns_.size();
  Column& column = columns_.emplace_back(Column{
      {name, 0}, StoreOutput(folder_ + "/" + values_file(number)), StoreOutput(folder_ + "/" + ends_file(number))});
  for (uint64_t i = 0; i < index; ++i) column.ends.append(&column.facts.num_bytes, sizeof column.facts.num_bytes);
}

void ColumnWriter::add(const DocumentColumns& columns, uint64_t index) {
  const auto is_named = [](const std::string& name) {
    return [&name](const Column& column) { return column.facts.name == name; };
  };
  for (const auto& [name, bytes] : columns)
    if (std::ranges::none_of(columns_, is_named(name))) begin(name, index);
  for (Column& column : columns_) {
    if (const auto found = columns.find(column.facts.name); found != columns.end()) {
      column.values.append(found->second.data(), found->second.size());
      column.facts.num_bytes += found->second.size();
    }
    column.ends.append(&column.facts.num_bytes, sizeof column.facts.num_bytes);
  }
}

std::vector<ColumnFacts> ColumnWriter::finish(std::map<std::string, uint32_t>& checksums) {
  std::vector<ColumnFacts> facts;
  for (size_t i = 0; i < columns_.size(); ++i) {
    columns_[i].values.finish();
    columns_[i].ends.finish();
    checksums[values_file(i)] = columns_[i].values.checksum();
    checksums[ends_file(i)] = columns_[i].ends.checksum();
    facts.push_back(std::move(columns_[i].facts));
  }
  return facts;
}

}  // namespace chassis
