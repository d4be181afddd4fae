// Reads and writes the files of a tokenised set. A masked label is stored as an id with all bits set.
#include "host/data/token_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "host/base/hash.hpp"
#include "host/base/printable.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/sequence_bytes.hpp"

namespace chassis {
namespace {

static_assert(std::endian::native == std::endian::little, "stores are little-endian");

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr size_t kVerifyBytes = size_t{4} << 20;
constexpr const char *kIds = "ids.bin", *kLabels = "labels.bin", *kDocuments = "documents.bin";
constexpr int kLineBits = 40;
constexpr size_t kMaxDropReasons = 32;
constexpr size_t kMaxShownDropped = 5;

struct DocumentEntry {
  uint64_t begin;
  uint64_t origin;  // file << kLineBits | line
};

// Widens in place: the narrow values are in the upper half, and are read before they are overwritten.
void widen(std::span<int32_t> values) {
  auto* bytes = reinterpret_cast<unsigned char*>(values.data());
  const unsigned char* narrow = bytes + values.size() * 2;
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t value;
    std::memcpy(&value, narrow + 2 * i, 2);
    const int32_t wide = value == 0xFFFF ? kIgnoreLabel : value;
    std::memcpy(bytes + 4 * i, &wide, 4);
  }
}

uint64_t chain(uint64_t hash, std::span<const int32_t> values, uint64_t tag) {
  return hash64({reinterpret_cast<const char*>(values.data()), values.size_bytes()}, hash + tag);
}

uint32_t checksum_of(const File& file, const std::function<void()>& poll) {
  std::vector<char> block(kVerifyBytes);
  uint32_t checksum = 0;
  for (uint64_t offset = 0, size = file.size(); offset < size;) {
    if (poll) poll();
    const size_t num_bytes = static_cast<size_t>(std::min<uint64_t>(block.size(), size - offset));
    file.pread_exact(block.data(), num_bytes, offset);
    checksum = crc32c(checksum, block.data(), num_bytes);
    offset += num_bytes;
  }
  return checksum;
}

}  // namespace

TokenStore::TokenStore(const std::string& folder, const TokenStoreFacts& facts, std::vector<std::string> source_files)
    : facts_(facts),
      source_files_(std::move(source_files)),
      columns_(folder, facts_.columns, facts_.num_documents),
      has_sequences_(columns_.has(kSequencesColumn)) {
  const uint64_t num_bytes = facts_.num_tokens * static_cast<uint64_t>(facts_.id_bytes);
  ids_ = File::open_read(folder + "/" + kIds);
  require_size(ids_, num_bytes);
  documents_ = File::open_read(folder + "/" + kDocuments);
  require_size(documents_, (facts_.num_documents + 1) * sizeof(DocumentEntry));
  if (facts_.has_labels) {
    labels_ = File::open_read(folder + "/" + kLabels);
    require_size(labels_, num_bytes);
  }
}

void TokenStore::verify(const std::function<void()>& poll) const {
  auto files = columns_.files();
  files.insert(files.begin(), {{kIds, &ids_}, {kLabels, &labels_}, {kDocuments, &documents_}});
  for (const auto& [name, file] : files) {
    if (!file->is_open()) continue;
    const auto wanted = facts_.checksums.find(name);
    if (wanted == facts_.checksums.end()) throw storage_error(file->path() + ": its manifest has no checksum");
    if (const uint32_t checksum = checksum_of(*file, poll); checksum != wanted->second) {
      throw storage_error(fmt::format("{}: its bytes have changed: CRC32C {:08x}, its manifest says {:08x}",
                                      file->path(), checksum, wanted->second));
    }
  }
}

DocumentSpan TokenStore::document(uint64_t index) const {
  DocumentSpan document;
  read_documents(index, std::span(&document, 1));
  return document;
}

void TokenStore::read_documents(uint64_t first, std::span<DocumentSpan> documents) const {
  CHASSIS_CHECK(first <= facts_.num_documents && documents.size() <= facts_.num_documents - first,
                "document number out of range");
  std::array<DocumentEntry, 257> block;
  for (size_t done = 0; done < documents.size();) {
    const size_t count = std::min(documents.size() - done, block.size() - 1);
    documents_.pread_exact(block.data(), (count + 1) * sizeof(DocumentEntry), (first + done) * sizeof(DocumentEntry));
    for (size_t i = 0; i < count; ++i, ++done) {
      const uint64_t begin = block[i].begin, end = block[i + 1].begin;
      if (begin >= end || end > facts_.num_tokens) {
        throw storage_error(fmt::format("{}: document {} spans tokens {} to {} of {}", documents_.path(), first + done,
                                        begin, end, facts_.num_tokens))
            .hint("remove the folder; the program makes it again");
      }
      documents[done] = {begin, end - begin, first + done};
    }
  }
}

SourcePosition TokenStore::origin(uint64_t index) const {
  CHASSIS_CHECK(index < facts_.num_documents, "document number out of range");
  DocumentEntry entry;
  documents_.pread_exact(&entry, sizeof entry, index * sizeof(DocumentEntry));
  const uint64_t file = entry.origin >> kLineBits;
  return line_position(file < source_files_.size() ? source_files_[file] : documents_.path(),
                       entry.origin & ((uint64_t{1} << kLineBits) - 1));
}

void TokenStore::read_ids(uint64_t token, std::span<int32_t> ids) const { read(ids_, token, ids); }

void TokenStore::read_labels(uint64_t token, std::span<int32_t> labels) const {
  read(facts_.has_labels ? labels_ : ids_, token, labels);
}

std::vector<SequenceFacts> TokenStore::sequences(const DocumentSpan& document) const {
  const auto damaged = [&](const std::string& what) {
    return storage_error(fmt::format("{}: document {}: {}", ids_.path(), document.index, what))
        .hint("remove the folder; the program makes it again");
  };
  std::vector<SequenceFacts> sequences;
  try {
    sequences = sequences_from_bytes(columns_.read(document.index, kSequencesColumn));
  } catch (const Error& error) {
    throw damaged(error.message());
  }
  uint64_t num_tokens = 0;
  for (const SequenceFacts& facts : sequences) num_tokens += static_cast<uint64_t>(facts.length);
  if (num_tokens != document.length)
    throw damaged(fmt::format("its sequences have {} tokens, and it has {}", num_tokens, document.length));
  return sequences;
}

uint64_t TokenStore::count_trained(uint64_t token, uint64_t count) const {
  if (!facts_.has_labels) return count;
  std::array<int32_t, 4096> labels;
  uint64_t num_trained = 0;
  while (count > 0) {
    const auto piece = std::span(labels).first(static_cast<size_t>(std::min<uint64_t>(count, labels.size())));
    read(labels_, token, piece);
    num_trained += piece.size() - static_cast<uint64_t>(std::count(piece.begin(), piece.end(), kIgnoreLabel));
    token += piece.size();
    count -= piece.size();
  }
  return num_trained;
}

void TokenStore::read(const File& file, uint64_t token, std::span<int32_t> values) const {
  if (values.empty()) return;
  CHASSIS_CHECK(token + values.size() <= facts_.num_tokens, "token out of range");
  if (facts_.id_bytes == 2) {
    auto* upper_half = reinterpret_cast<unsigned char*>(values.data()) + values.size() * 2;
    file.pread_exact(upper_half, values.size() * 2, token * 2);
    widen(values);
    return;
  }
  file.pread_exact(values.data(), values.size_bytes(), token * 4);
  for (int32_t& value : values) value = value == -1 ? kIgnoreLabel : value;
}

TokenStore::LongDocuments TokenStore::longer_than(uint64_t limit, const std::function<void()>& poll) const {
  LongDocuments result;
  if (facts_.longest_document <= limit) return result;
  std::vector<DocumentSpan> block(4096);
  for (uint64_t first = 0; first < facts_.num_documents; first += block.size()) {
    if (poll) poll();
    block.resize(static_cast<size_t>(std::min<uint64_t>(block.size(), facts_.num_documents - first)));
    read_documents(first, block);
    for (size_t i = 0; i < block.size(); ++i) {
      if (block[i].length <= limit) continue;
      if (result.count++ == 0) result.first = first + i;
      result.num_tokens += block[i].length;
    }
  }
  return result;
}

TokenStoreWriter::TokenStoreWriter(std::string folder, int64_t id_bytes)
    : folder_(std::move(folder)),
      ids_(folder_ + "/" + kIds),
      documents_(folder_ + "/" + kDocuments),
      columns_(folder_),
      hash_{1, 2} {
  CHASSIS_CHECK(id_bytes == 2 || id_bytes == 4, "ids have 2 or 4 bytes");
  facts_.id_bytes = id_bytes;
}

void TokenStoreWriter::append_values(StoreOutput& output, std::span<const int32_t> values) {
  // Small pieces, so that a document of any length needs no second copy.
  std::array<char, 4096 * 4> bytes;
  const size_t width = static_cast<size_t>(facts_.id_bytes);
  for (size_t begin = 0; begin < values.size(); begin += 4096) {
    const auto piece = values.subspan(begin, std::min<size_t>(4096, values.size() - begin));
    for (size_t i = 0; i < piece.size(); ++i) {
      const uint32_t value = piece[i] == kIgnoreLabel ? 0xFFFFFFFFu : static_cast<uint32_t>(piece[i]);
      std::memcpy(bytes.data() + i * width, &value, width);
    }
    output.append(bytes.data(), piece.size() * width);
  }
}

void TokenStoreWriter::append_origin(uint64_t origin) {
  const DocumentEntry entry{facts_.num_tokens, origin};
  documents_.append(&entry, sizeof entry);
}

// Until now every label was equal to its id, so the file starts as a copy of ids.bin.
void TokenStoreWriter::begin_labels() {
  labels_.emplace_back(folder_ + "/" + kLabels);
  ids_.flush();
  const File written = File::open_read(folder_ + "/" + kIds);
  std::vector<char> block(kBufferBytes);
  for (uint64_t offset = 0, size = written.size(); offset < size;) {
    const size_t num_bytes = static_cast<size_t>(std::min<uint64_t>(block.size(), size - offset));
    written.pread_exact(block.data(), num_bytes, offset);
    labels_.front().append(block.data(), num_bytes);
    offset += num_bytes;
  }
}

namespace {

// The columns of a document, with its sequences as one of them.
DocumentColumns with_sequences(const Document& document) {
  CHASSIS_CHECK(document.labels.size() == document.ids.size(), "sequences have labels");
  size_t begin = 0;
  for (const SequenceFacts& facts : document.sequences) {
    CHASSIS_CHECK(facts.length > 0 && begin < document.ids.size(), "a sequence without a token");
    CHASSIS_CHECK(document.labels[begin] == kIgnoreLabel, "the first token of a sequence has none before it");
    begin += static_cast<size_t>(facts.length);
  }
  CHASSIS_CHECK(begin == document.ids.size(), "sequences are all of their document");
  DocumentColumns columns = document.columns;
  const bool is_new = columns.emplace(kSequencesColumn, sequence_bytes(document.sequences)).second;
  CHASSIS_CHECK(is_new, "a column with the name of the sequences");
  return columns;
}

}  // namespace

void TokenStoreWriter::add(const Document& document, uint64_t file_index) {
  const std::vector<int32_t>& ids = document.ids;
  const std::vector<int32_t>& labels = document.labels;
  CHASSIS_CHECK(!ids.empty(), "a document without a token");
  CHASSIS_CHECK(labels.empty() || labels.size() == ids.size(), "one label per id");
  int32_t max_id = *std::max_element(ids.begin(), ids.end());
  CHASSIS_CHECK(facts_.id_bytes == 4 || max_id < 0xFFFF, "an id that does not fit into two bytes");

  append_origin(file_index << kLineBits | document.line);
  if (labels_.empty() && !labels.empty() && labels != ids) begin_labels();
  append_values(ids_, ids);
  if (!labels_.empty()) append_values(labels_.front(), labels.empty() ? ids : labels);

  DocumentColumns own;
  if (!document.sequences.empty()) own = with_sequences(document);
  const DocumentColumns& columns = document.sequences.empty() ? document.columns : own;
  for (uint64_t& hash : hash_) {
    hash = chain(hash, ids, 0);
    if (!labels.empty() && labels != ids) hash = chain(hash, labels, 1);
    for (const auto& [name, bytes] : columns)
      hash = hash64({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, hash64(name, hash + 2));
  }
  columns_.add(columns, facts_.num_documents);
  if (!labels.empty()) max_id = std::max(max_id, *std::max_element(labels.begin(), labels.end()));
  if (max_id > facts_.max_id) {
    facts_.max_id = max_id;
    facts_.max_id_document = facts_.num_documents;
  }
  facts_.num_trained_tokens +=
      labels.empty() ? ids.size() - 1
                     : static_cast<uint64_t>(labels.size() - 1) -
                           static_cast<uint64_t>(std::count(labels.begin() + 1, labels.end(), kIgnoreLabel));
  facts_.longest_document = std::max<uint64_t>(facts_.longest_document, ids.size());
  facts_.num_tokens += ids.size();
  ++facts_.num_documents;
}

void TokenStoreWriter::add_notes(const ReadNotes& notes) { facts_.notes.add(notes); }

void TokenStoreWriter::add_dropped(const std::string& reason, const SourcePosition& where) {
  // Templates refuse in their own words, which may quote the row, so there may be very many reasons.
  const bool is_named = facts_.dropped.size() < kMaxDropReasons || facts_.dropped.contains(reason);
  ++facts_.dropped[is_named ? reason : "other reasons"];
  if (facts_.first_dropped.size() < kMaxShownDropped) facts_.first_dropped.push_back(where.text() + ": " + reason);
}

void TokenStoreWriter::add_rows(size_t file, uint64_t num_rows, uint64_t content_hash) {
  if (content_.size() <= file) content_.resize(file + 1);
  content_[file] += content_hash;
  facts_.num_rows += num_rows;
}

TokenStoreFacts TokenStoreWriter::finish() {
  append_origin(0);
  ids_.finish();
  documents_.finish();
  for (StoreOutput& labels : labels_) labels.finish();
  facts_.has_labels = !labels_.empty();
  for (const uint64_t hash : content_) facts_.content_of_files.push_back(fmt::format("{:016x}", hash));
  facts_.content_hash = fmt::format("{:016x}{:016x}", hash_[0], hash_[1]);
  facts_.checksums = {{kIds, ids_.checksum()}, {kDocuments, documents_.checksum()}};
  if (facts_.has_labels) facts_.checksums[kLabels] = labels_.front().checksum();
  facts_.columns = columns_.finish(facts_.checksums);
  return facts_;
}

Json to_json(const TokenStoreFacts& facts) {
  Json json;
  json["id_bytes"] = facts.id_bytes;
  json["num_documents"] = facts.num_documents;
  json["num_tokens"] = facts.num_tokens;
  json["num_trained_tokens"] = facts.num_trained_tokens;
  json["longest_document"] = facts.longest_document;
  json["has_labels"] = facts.has_labels;
  json["max_id"] = facts.max_id;
  json["max_id_document"] = facts.max_id_document;
  json["content_hash"] = facts.content_hash;
  json["num_rows"] = facts.num_rows;
  json["dropped"] = Json::object();
  for (const auto& [reason, rows] : facts.dropped) json["dropped"][printable(reason)] = rows;
  json["first_dropped"] = Json::array();
  for (const std::string& row : facts.first_dropped) json["first_dropped"].push_back(printable(row));
  json["content_of_files"] = facts.content_of_files;
  for (const ColumnFacts& column : facts.columns)
    json["columns"].push_back({{"name", column.name}, {"num_bytes", column.num_bytes}});
  json["crc32c"] = Json::object();
  for (const auto& [name, checksum] : facts.checksums) json["crc32c"][name] = checksum;
  json["num_empty_documents"] = facts.notes.num_empty_documents;
  json["num_blank_lines"] = facts.notes.num_blank_lines;
  json["unused_columns"] = Json::object();
  for (const auto& [name, rows] : facts.notes.unused_columns) json["unused_columns"][name] = rows;
  json["changes"] = Json::object();
  for (const auto& [what, times] : facts.notes.changes) json["changes"][what] = times;
  return json;
}

TokenStoreFacts token_store_facts_from_json(const Json& json, const std::string& where) {
  auto count = [&](std::string_view key) {
    const int64_t value = json_int(json, key, where);
    if (value < 0) throw storage_error(fmt::format("{}: \"{}\" is {}", where, key, value));
    return static_cast<uint64_t>(value);
  };
  TokenStoreFacts facts;
  facts.id_bytes = json_int(json, "id_bytes", where);
  if (facts.id_bytes != 2 && facts.id_bytes != 4) {
    throw storage_error(fmt::format("{}: \"id_bytes\" is {}, not 2 or 4", where, facts.id_bytes));
  }
  facts.num_documents = count("num_documents");
  facts.num_tokens = count("num_tokens");
  facts.num_trained_tokens = count("num_trained_tokens");
  facts.longest_document = count("longest_document");
  facts.has_labels = json_bool(json, "has_labels", where);
  const int64_t max_id = json_int(json, "max_id", where);
  if (max_id < 0 || max_id > std::numeric_limits<int32_t>::max()) {
    throw storage_error(fmt::format("{}: \"max_id\" is {}", where, max_id));
  }
  facts.max_id = static_cast<int32_t>(max_id);
  facts.max_id_document = count("max_id_document");
  facts.content_hash = json_string(json, "content_hash", where);
  facts.num_rows = count("num_rows");
  const Json& dropped = json_at(json, "dropped", where);
  for (const auto& [reason, rows] : dropped.items())
    facts.dropped[reason] = static_cast<uint64_t>(json_int_in(rows, reason, where));
  const auto strings = [&](const char* key, std::vector<std::string>& out) {
    for (const Json& text : json_at(json, key, where)) {
      if (!text.is_string()) throw storage_error(fmt::format("{}: an entry of \"{}\" is not a string", where, key));
      out.push_back(text.get<std::string>());
    }
  };
  strings("first_dropped", facts.first_dropped);
  strings("content_of_files", facts.content_of_files);
  if (json.contains("columns"))
    for (const Json& column : json_at(json, "columns", where))
      facts.columns.push_back(
          {json_string(column, "name", where), static_cast<uint64_t>(json_int(column, "num_bytes", where))});
  facts.notes.num_empty_documents = count("num_empty_documents");
  facts.notes.num_blank_lines = count("num_blank_lines");
  const Json& checksums = json_at(json, "crc32c", where);
  for (const auto& [name, checksum] : checksums.items()) {
    facts.checksums[name] = static_cast<uint32_t>(json_int_in(checksum, name, where));
  }
  const Json& columns = json_at(json, "unused_columns", where);
  for (const auto& [name, rows] : columns.items()) {
    facts.notes.unused_columns[name] = static_cast<uint64_t>(json_int_in(rows, name, where));
  }
  const Json& changes = json_at(json, "changes", where);
  for (const auto& [what, times] : changes.items())
    facts.notes.changes[what] = static_cast<uint64_t>(json_int_in(times, what, where));
  return facts;
}

}  // namespace chassis
