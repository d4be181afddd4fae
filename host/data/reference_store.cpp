// Reads and writes blocks. Everything that a file says is checked before it is used.
#include "host/data/reference_store.hpp"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "host/base/creation_limit.hpp"
#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/data/store_key.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic("chsref1\n", 8);
constexpr size_t kHashDigits = 16;
constexpr const char* kUnfinished = ".unfinished";
constexpr int kMaxAttempts = 8;           // at giving a file its name
constexpr size_t kCopiedBytes = 1 << 20;  // at once

struct Frame {
  uint32_t num_bytes = 0;
  uint32_t checksum = 0;
};

template <class T>
void put(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// False if there are not enough bytes.
template <class T>
bool take(std::string_view& bytes, T& value) {
  if (bytes.size() < sizeof value) return false;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return true;
}

void put(std::string& bytes, const ReferenceRecord& record) {
  put(bytes, record.document);
  put(bytes, static_cast<uint32_t>(record.sequences.size()));
  for (const ReferenceLogps& logps : record.sequences) {
    put(bytes, logps.sum);
    put(bytes, static_cast<uint32_t>(logps.tokens.size()));
    bytes.append(reinterpret_cast<const char*>(logps.tokens.data()), logps.tokens.size() * sizeof(float));
  }
}

bool take(std::string_view& bytes, ReferenceRecord& record) {
  uint32_t num_sequences = 0;
  if (!take(bytes, record.document) || !take(bytes, num_sequences)) return false;
  record.sequences.clear();
  for (uint32_t s = 0; s < num_sequences; ++s) {
    ReferenceLogps& logps = record.sequences.emplace_back();
    uint32_t num_tokens = 0;
    if (!take(bytes, logps.sum) || !take(bytes, num_tokens) || bytes.size() / sizeof(float) < num_tokens) return false;
    logps.tokens.resize(num_tokens);
    if (num_tokens > 0) std::memcpy(logps.tokens.data(), bytes.data(), num_tokens * sizeof(float));
    bytes.remove_prefix(num_tokens * sizeof(float));
  }
  return true;
}

// Reads a file block by block.
class BlockReader {
 public:
  explicit BlockReader(const File& file) : file_(file), num_bytes_(file.size()) {
    std::array<char, kMagic.size()> magic{};
    if (num_bytes_ < magic.size()) throw damaged("it ends in its first 8 bytes");
    file_.pread_exact(magic.data(), magic.size(), 0);
    if (std::string_view(magic.data(), magic.size()) != kMagic) throw damaged("it has no values of a reference");
    offset_ = magic.size();
    std::string header;
    if (!next(header)) throw damaged("it has no header");
    header_ = parse_json(header, file_.path(), ExitCode::kStorage);
    if (!header_.contains("key")) throw damaged("its header has no key");
  }

  const Json& header() const { return header_; }
  // The end of the last block, and the first of its bytes.
  uint64_t offset() const { return offset_; }
  uint64_t begin() const { return begin_; }
  uint32_t checksum() const { return checksum_; }
  bool is_complete() const { return is_complete_; }          // after the last block
  uint64_t num_documents() const { return num_documents_; }  // at the end of a complete file

  // Returns false at the end of the blocks. Throws a storage error at the first defect.
  bool next(std::string& payload) {
    if (offset_ == num_bytes_) return false;
    Frame frame;
    read(&frame, sizeof frame);
    const bool is_end = frame.num_bytes == 0;
    payload.resize(is_end ? sizeof num_documents_ : frame.num_bytes);
    if (payload.size() > num_bytes_ - offset_ - sizeof frame)
      throw damaged(fmt::format("it ends at byte {} within a block of {} bytes", num_bytes_, payload.size()));
    begin_ = offset_ + sizeof frame;
    file_.pread_exact(payload.data(), payload.size(), begin_);
    const uint32_t checksum = crc32c(checksum_, payload.data(), payload.size());
    if (checksum != frame.checksum)
      throw damaged(fmt::format("the block at byte {} has checksum {:08x}, and {:08x} is written", offset_, checksum,
                                frame.checksum));
    checksum_ = checksum;
    offset_ = begin_ + payload.size();
    if (!is_end) return true;
    std::memcpy(&num_documents_, payload.data(), sizeof num_documents_);
    if (offset_ != num_bytes_) throw damaged(fmt::format("it has {} bytes after its end", num_bytes_ - offset_));
    is_complete_ = true;
    return false;
  }

  Error damaged(const std::string& what) const {
    return storage_error(fmt::format("{} is damaged: {}", file_.path(), what))
        .hint("remove the file; the program makes it again");
  }

 private:
  void read(void* to, size_t num_bytes) {
    if (num_bytes > num_bytes_ - offset_) throw damaged(fmt::format("it ends at byte {} within a block", num_bytes_));
    file_.pread_exact(to, num_bytes, offset_);
  }

  const File& file_;
  uint64_t num_bytes_, offset_ = 0, begin_ = 0, num_documents_ = 0;
  uint32_t checksum_ = 0;
  bool is_complete_ = false;
  Json header_;
};

uint64_t inode_of(const File& file) {
  struct stat info {};
  if (::fstat(file.descriptor(), &info) != 0) throw file_error("cannot read the status of", file.path(), errno);
  return static_cast<uint64_t>(info.st_ino);
}

// Returns false if another process holds the file.
bool lock(const File& file) { return ::flock(file.descriptor(), LOCK_EX | LOCK_NB) == 0; }

// True if the path leads to this open file.
bool is_at(const File& file, const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && static_cast<uint64_t>(info.st_ino) == inode_of(file);
}

// The file has a name of its own, and no other process removes it.
File create_private(const std::string& name) {
  std::error_code ignored;
  fs::remove(name, ignored);
  for (int attempt = 1;; ++attempt) {
    File file = File::create_exclusive(name);
    lock(file);
    if (is_at(file, name) || attempt == kMaxAttempts) return file;  // else another process removed it before the lock
  }
}

// True if the file is finished and has this key.
bool is_finished_with(const std::string& path, const Json& key) {
  try {
    const File file = File::open_read(path);
    BlockReader blocks(file);
    if (json_at(blocks.header(), "key", path) != key) return false;
    for (std::string payload; blocks.next(payload);) continue;
    return blocks.is_complete();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::vector<double> to_numbers(std::span<const ReferenceRecord> records) {
  std::vector<double> numbers;
  for (const ReferenceRecord& record : records) {
    numbers.push_back(static_cast<double>(record.document));
    numbers.push_back(static_cast<double>(record.sequences.size()));
    for (const ReferenceLogps& logps : record.sequences) {
      numbers.push_back(logps.sum);
      numbers.push_back(static_cast<double>(logps.tokens.size()));
      numbers.insert(numbers.end(), logps.tokens.begin(), logps.tokens.end());
    }
  }
  return numbers;
}

std::vector<ReferenceRecord> records_from_numbers(std::span<const double> numbers) {
  std::vector<ReferenceRecord> records;
  const auto next = [&] {
    CHASSIS_CHECK(!numbers.empty(), "the numbers of a record");
    const double number = numbers.front();
    numbers = numbers.subspan(1);
    return number;
  };
  while (!numbers.empty()) {
    ReferenceRecord& record = records.emplace_back();
    record.document = static_cast<uint64_t>(next());
    record.sequences.resize(static_cast<size_t>(next()));
    for (ReferenceLogps& logps : record.sequences) {
      logps.sum = next();
      logps.tokens.resize(static_cast<size_t>(next()));
      for (float& token : logps.tokens) token = static_cast<float>(next());
    }
  }
  return records;
}

std::string reference_hash(const Json& key) { return sha256_hex(key.dump()).substr(0, kHashDigits); }

ReferenceStore::ReferenceStore(const std::string& path, const Json& key, uint64_t num_documents,
                               const std::function<void()>& poll)
    : file_(File::open_read(path)), places_(static_cast<size_t>(num_documents)) {
  BlockReader blocks(file_);
  if (const Json& kept = json_at(blocks.header(), "key", path); kept != key)
    throw storage_error(fmt::format("{} has other values than those that are needed: its key is {}, not {}: {}", path,
                                    reference_hash(kept), reference_hash(key), key_difference(kept, key)));
  for (std::string payload; blocks.next(payload);) {
    if (poll) poll();
    ReferenceRecord record;
    for (std::string_view left = payload; !left.empty();) {
      const size_t before = left.size();
      if (!take(left, record)) throw blocks.damaged("a block ends within the values of a document");
      if (record.document >= num_documents)
        throw blocks.damaged(fmt::format("it has document {}, and the set has {}", record.document, num_documents));
      Place& place = places_[static_cast<size_t>(record.document)];
      if (place.num_bytes != 0) throw blocks.damaged(fmt::format("it has document {} twice", record.document));
      place = {blocks.begin() + payload.size() - before, static_cast<uint32_t>(before - left.size())};
      ++num_records_;
    }
  }
  if (!blocks.is_complete()) throw blocks.damaged(fmt::format("it ends after {} documents", num_records_));
  if (blocks.num_documents() != num_records_)
    throw blocks.damaged(fmt::format("it has {} documents, and {} were written", num_records_, blocks.num_documents()));
}

std::vector<ReferenceLogps> ReferenceStore::read(uint64_t document, size_t num_sequences) const {
  CHASSIS_CHECK(document < places_.size(), "document number out of range");
  const Place& place = places_[static_cast<size_t>(document)];
  std::string bytes(place.num_bytes, '\0');
  file_.pread_exact(bytes.data(), bytes.size(), place.offset);
  ReferenceRecord record;
  std::string_view left = bytes;
  if (!take(left, record) || record.document != document || record.sequences.size() != num_sequences)
    throw storage_error(fmt::format("{}: document {} has {} sequences, and the file has values of {}", path(), document,
                                    num_sequences, record.sequences.size()))
        .hint("remove the file; the program makes it again");
  return std::move(record.sequences);
}

ReferenceWriter::ReferenceWriter(std::string path, const Json& key, const Json& order)
    : path_(std::move(path)), key_(key) {
  for (const std::string& name : {path_, path_ + kUnfinished})
    if (path_kind_nofollow(name) == PathKind::kDirectory)
      throw storage_error(fmt::format("cannot write '{}': it is a directory", name)).hint(kDirectoryHint);
  const Json header = {{"key", key}, {"order", order}};
  if (lock_shared()) {
    if (file_.size() > 0) read_unfinished(header);
  } else {
    is_private_ = true;
    name_ = temporary_name(path_);
    file_ = create_private(name_);
  }
  if (ends_.empty()) begin(header);
}

ReferenceWriter::~ReferenceWriter() {
  std::error_code ignored;
  if (is_private_ && !is_finished_) fs::remove(name_, ignored);
}

// Returns false if another process holds the file, or has just finished it.
bool ReferenceWriter::lock_shared() {
  name_ = path_ + kUnfinished;
  file_ = File::open_or_create_own(name_);
  inode_ = inode_of(file_);
  return lock(file_) && is_at(file_, name_);
}

void ReferenceWriter::read_unfinished(const Json& header) {
  try {
    BlockReader blocks(file_);
    if (blocks.header() != header) {
      why_not_ = key_difference(blocks.header(), header);
      return;
    }
    ends_.push_back({blocks.offset(), blocks.checksum(), 0});
    for (std::string payload; blocks.next(payload);) {
      uint64_t num_documents = ends_.back().num_documents;
      ReferenceRecord record;
      for (std::string_view left = payload; !left.empty(); ++num_documents)
        if (!take(left, record)) throw blocks.damaged("a block ends within the values of a document");
      ends_.push_back({blocks.offset(), blocks.checksum(), num_documents});
    }
  } catch (const Error& error) {
    if (error.code() != ExitCode::kStorage) throw;
    why_not_ = error.message();
  }
  if (!ends_.empty()) file_.truncate(ends_.back().offset);
}

void ReferenceWriter::begin(const Json& header) {
  file_.truncate(0);
  file_.pwrite_exact(kMagic.data(), kMagic.size(), 0);
  ends_ = {{kMagic.size(), 0, 0}};
  append(header.dump(), 0);
  ends_.erase(ends_.begin());
}

void ReferenceWriter::keep(uint64_t num_blocks) {
  CHASSIS_CHECK(num_blocks <= this->num_blocks(), "blocks of the file");
  ends_.resize(static_cast<size_t>(num_blocks) + 1);
  file_.truncate(ends_.back().offset);
}

void ReferenceWriter::append(std::string_view payload, uint64_t num_documents) {
  CHASSIS_CHECK(!payload.empty() && payload.size() <= std::numeric_limits<uint32_t>::max(), "the size of a block");
  const End& last = ends_.back();
  const Frame frame{static_cast<uint32_t>(payload.size()), crc32c(last.checksum, payload.data(), payload.size())};
  std::string bytes;
  put(bytes, frame);
  bytes += payload;
  file_.pwrite_exact(bytes.data(), bytes.size(), last.offset);
  ends_.push_back({last.offset + bytes.size(), frame.checksum, last.num_documents + num_documents});
}

void ReferenceWriter::add(std::span<const ReferenceRecord> records) {
  std::string payload;
  for (const ReferenceRecord& record : records) put(payload, record);
  append(payload, records.size());
}

void ReferenceWriter::finish() {
  const End& last = ends_.back();
  std::string bytes;
  put(bytes, last.num_documents);
  const uint32_t checksum = crc32c(last.checksum, bytes.data(), bytes.size());
  std::string end;
  put(end, Frame{0, checksum});
  end += bytes;
  file_.pwrite_exact(end.data(), end.size(), last.offset);
  file_.fsync();
  give_name();
  is_finished_ = true;
}

// A process that does not know the lock may have removed the unfinished file. Its content is still there.
void ReferenceWriter::give_name() {
  for (int attempt = 1;; ++attempt) {
    if (!is_at(file_, name_)) {
      if (is_finished_with(path_, key_)) return;
      write_again();
    }
    try {
      return rename_durably(name_, path_);
    } catch (const Error&) {
      if (is_at(file_, name_) || attempt == kMaxAttempts) throw;
    }
  }
}

void ReferenceWriter::write_again() {
  const std::string name = temporary_name(path_);
  File copy = create_private(name);
  name_ = name;
  is_private_ = true;
  const uint64_t num_bytes = file_.size();
  std::string bytes;
  for (uint64_t offset = 0; offset < num_bytes; offset += bytes.size()) {
    bytes.resize(static_cast<size_t>(std::min<uint64_t>(kCopiedBytes, num_bytes - offset)));
    file_.pread_exact(bytes.data(), bytes.size(), offset);
    copy.pwrite_exact(bytes.data(), bytes.size(), offset);
  }
  copy.fsync();
  file_ = std::move(copy);
}

std::vector<std::string> kept_references(const std::string& prefix) {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  const fs::path whole(prefix);
  std::error_code ignored;
  if (path_kind(whole.parent_path().string()) != PathKind::kDirectory) return {};
  for (const DirectoryEntry& entry : list_directory(whole.parent_path().string())) {
    if (entry.kind != PathKind::kFile || !entry.name.starts_with(whole.filename().string())) continue;
    const std::string path = (whole.parent_path() / entry.name).string();
    found.emplace_back(fs::last_write_time(path, ignored), path);
  }
  std::ranges::sort(found, std::greater());
  std::vector<std::string> paths;
  for (auto& [time, path] : found) paths.push_back(std::move(path));
  return paths;
}

void remove_old_references(const std::string& prefix, size_t num_kept) {
  size_t num_finished = 0, num_unfinished = 0;
  for (const std::string& path : kept_references(prefix)) {
    const bool is_unfinished = path.find('.', prefix.size()) != path.npos;  // a suffix of a temporary name
    if (++(is_unfinished ? num_unfinished : num_finished) <= num_kept) continue;
    try {
      const File file = File::open_nofollow(path);
      std::error_code ignored;
      if (lock(file) && is_at(file, path)) fs::remove(path, ignored);
    } catch (const Error&) {  // another process removed it, or it belongs to another user
    }
  }
}

std::optional<Json> key_of_reference(const std::string& path) {
  try {
    const File file = File::open_read(path);
    const BlockReader blocks(file);
    return json_at(blocks.header(), "key", path);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace chassis
