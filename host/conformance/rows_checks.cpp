// Reads files as the host does, with other numbers of rows per call, and damaged files.
#include "host/conformance/rows_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "chassis/kind/rows.h"
#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/base/thread.hpp"
#include "host/conformance/growth.hpp"
#include "host/conformance/tokenizer_checks.hpp"
#include "host/plugin/status.hpp"
#include "host/text/plugin_rows.hpp"

namespace chassis {
namespace {

constexpr uint64_t kSomeRows = 7;
constexpr size_t kMaxRows = 1000;  // maximum examined per file

struct Refusal {
  int32_t code = CHASSIS_OK;
  std::string text;
};

// An open file, with the rows read from it.
class ReadFile {
 public:
  ReadFile(const Instance& instance, const std::string& path)
      : instance_(instance), table_(instance.interface<chassis_rows_t>(CHASSIS_ROWS_ID)) {
    chassis_row_file_info_t info{};
    info.struct_size = sizeof info;
    take(table_.open(instance_.get("open"), str_of(path), &info, &file_));
    num_rows_ = info.num_rows;
    if (num_rows_ < -1) fault_ = fmt::format("says that it has {} rows, expected a number or -1", num_rows_);
    std::error_code ignored;
    const uintmax_t size = std::filesystem::file_size(path, ignored);
    num_file_bytes_ = ignored ? 0 : size;
  }
  ~ReadFile() {
    if (file_) table_.close(instance_.get("close"), file_);
  }
  ReadFile(const ReadFile&) = delete;
  ReadFile& operator=(const ReadFile&) = delete;

  // Returns false at the end, and after an error.
  bool next(uint64_t max_rows) {
    if (refusal_ || !fault_.empty()) return false;
    struct Sink {
      std::vector<std::string>& rows;
      std::thread::id thread = std::this_thread::get_id();
      std::atomic<bool> other_thread = false;
    } kept{rows_};
    const chassis_row_sink_t sink = {sizeof sink, 0, &kept, [](const chassis_row_sink_t* self, chassis_str_t json) {
                                       Sink& kept = *static_cast<Sink*>(self->impl);
                                       if (std::this_thread::get_id() != kept.thread)
                                         kept.other_thread = true;
                                       else
                                         guarded_void([&] { kept.rows.emplace_back(view_of(json)); });
                                     }};
    chassis_rows_read_t read{};
    read.struct_size = sizeof read;
    const size_t before = rows_.size();
    if (!take(table_.next(instance_.get("next"), file_, max_rows, &sink, &read))) return false;
    const size_t given = rows_.size() - before;
    if (given != read.num_rows || given > max_rows)
      fault_ = fmt::format("gives {} of {} rows, and says {}", given, max_rows, read.num_rows);
    if (read.num_bytes < num_bytes_)
      fault_ = fmt::format("has read {} bytes, and before it {}", read.num_bytes, num_bytes_);
    if (read.num_bytes > num_file_bytes_ + kMaxLineEndBytes)
      fault_ = fmt::format("has read {} bytes of a file of {}", read.num_bytes, num_file_bytes_);
    if (num_rows_ >= 0 && rows_.size() > static_cast<uint64_t>(num_rows_))
      fault_ = fmt::format("gives {} rows, and open says {}", rows_.size(), num_rows_);
    if (kept.other_thread) fault_ = "gives rows to the sink on another thread than the one that called next";
    num_bytes_ = read.num_bytes;
    return given > 0 && fault_.empty();
  }
  void read(uint64_t max_rows) {
    while (rows_.size() < kMaxRows && next(max_rows)) {
    }
  }

  const std::vector<std::string>& rows() const { return rows_; }
  const std::optional<Refusal>& refusal() const { return refusal_; }
  const std::string& fault() const { return fault_; }
  int64_t num_rows() const { return num_rows_; }

 private:
  bool take(chassis_status_t* status) {
    if (status == nullptr) return true;
    refusal_ = Refusal{status_code(status), status_text(status)};
    status_release(status);
    if (refusal_->text.starts_with("no message, status ")) refusal_->text.clear();
    return false;
  }

  const Instance& instance_;
  const chassis_rows_t& table_;
  void* file_ = nullptr;
  int64_t num_rows_ = -1;
  uint64_t num_bytes_ = 0, num_file_bytes_ = 0;
  std::vector<std::string> rows_;
  std::optional<Refusal> refusal_;
  std::string fault_;
};

class RowsExamination {
 public:
  RowsExamination(const Instance& instance, const std::vector<std::string>& files)
      : instance_(instance), files_(files) {}

  std::vector<std::string> run() {
    examine_refusals();
    for (const std::string& file : files_) {
      examine_rows(file);
      if (failures_.empty()) examine_damage(file);
    }
    if (failures_.empty()) examine_files_together();
    for (const std::string& file : files_)
      if (failures_.empty()) examine_growth(file);
    return failures_;
  }

 private:
  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    failures_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void examine_refusals() {
    std::string noise(4096, '\0');
    uint32_t state = 1;
    for (char& byte : noise) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
    const TokenizerFolder folder({{"empty", ""}, {"noise", noise}});
    const ReadFile none(instance_, folder.path() + "/none");
    if (!none.refusal() || none.refusal()->code != CHASSIS_NOT_FOUND)
      fail("a file that is not there: {}, expected NOT_FOUND",
           none.refusal() ? status_code_text(none.refusal()->code) : "is opened");
    for (const char* name : {"empty", "noise"})
      may_refuse(std::string("a file with ") + name, folder.path() + "/" + name);
  }

  void may_refuse(const std::string& what, const std::string& path) {
    ReadFile file(instance_, path);
    file.read(kSomeRows);
    if (!file.fault().empty()) fail("{}: {}", what, file.fault());
    if (!file.refusal()) return;
    const auto& [code, text] = *file.refusal();
    if (code != CHASSIS_INVALID_ARGUMENT && code != CHASSIS_DATA_LOSS)
      fail("{} is refused with {}, expected INVALID_ARGUMENT or DATA_LOSS: {}", what, status_code_text(code), text);
    if (text.empty()) fail("{} is refused without a message", what);
  }

  void examine_rows(const std::string& file) {
    ReadFile whole(instance_, file);
    whole.read(kMaxRows);
    if (whole.refusal()) return fail("{}: refused: {}", file, whole.refusal()->text);
    if (!whole.fault().empty()) return fail("{}: {}", file, whole.fault());
    const std::vector<std::string>& rows = whole.rows();
    const bool is_whole = rows.size() < kMaxRows;
    if (whole.num_rows() >= 0 && is_whole && rows.size() != static_cast<uint64_t>(whole.num_rows()))
      fail("{}: gives {} rows, and open says {}", file, rows.size(), whole.num_rows());
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].find_first_of("\r\n") != std::string::npos)
        fail("row {} has a line break between its values: {}", i + 1, printable(rows[i], 80));
      try {
        if (!parse_json(rows[i], "the row").is_object())
          fail("row {} is not a JSON object: {}", i + 1, printable(rows[i], 80));
      } catch (const Error& error) {
        fail("row {}: {}", i + 1, error.message());
      }
      if (failures_.size() > 8) return;
    }
    const auto same = [&](const ReadFile& other) {
      const size_t count = std::min(rows.size(), other.rows().size());
      return other.fault().empty() && !other.refusal() && (count == rows.size() || count >= kMaxRows) &&
             std::equal(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(count), other.rows().begin());
    };
    ReadFile one(instance_, file), some(instance_, file);
    while (one.rows().size() < kMaxRows && (one.next(1) | some.next(kSomeRows))) {
    }
    one.read(1);
    some.read(kSomeRows);
    const auto compare = [&](const ReadFile& other, uint64_t max_rows) {
      const std::string reason = other.refusal() ? other.refusal()->text : other.fault();
      if (!same(other))
        fail("other rows if {} at a time are read, with another file open{}", max_rows,
             reason.empty() ? "" : ": " + reason);
    };
    compare(one, 1);
    compare(some, kSomeRows);
    std::array<bool, 4> equal{};
    std::vector<Thread> threads;
    threads.reserve(equal.size());
    for (bool& mine : equal)
      threads.emplace_back("test", [&, out = &mine] {
        try {
          ReadFile mine(instance_, file);
          mine.read(kSomeRows);
          *out = same(mine);
        } catch (...) {
          *out = false;
        }
      });
    for (Thread& thread : threads) thread.join();
    if (!std::all_of(equal.begin(), equal.end(), [](bool e) { return e; }))
      fail("other rows in 4 threads that read the file at once");
  }

  // Rows of different files must not mix.
  void examine_files_together() {
    if (files_.size() < 2) return;
    std::vector<std::unique_ptr<ReadFile>> alone, together;
    for (const std::string& file : files_) {
      alone.push_back(std::make_unique<ReadFile>(instance_, file));
      alone.back()->read(kSomeRows);
    }
    for (const std::string& file : files_) together.push_back(std::make_unique<ReadFile>(instance_, file));
    for (bool any = true; any;) {
      any = false;
      for (const auto& file : together) any |= file->rows().size() < kMaxRows && file->next(kSomeRows);
    }
    for (size_t i = 0; i < files_.size(); ++i)
      if (together[i]->rows() != alone[i]->rows())
        fail("{}: other rows if {} files are open at once than if it is read alone", files_[i], files_.size());
  }

  void examine_growth(const std::string& path) {
    const std::string text = growth_of("readings of " + path, 20, [&] {
      ReadFile file(instance_, path);
      file.read(kSomeRows);
    });
    if (!text.empty()) fail("{}", text);
  }

  void examine_damage(const std::string& file) {
    const std::string whole = read_file(file);
    constexpr int kNumParts = 16;
    for (int part = 1; part < kNumParts; ++part) {
      const size_t size = whole.size() * static_cast<size_t>(part) / kNumParts;
      const TokenizerFolder folder({{"part", whole.substr(0, size)}});
      may_refuse(fmt::format("the first {} of {} bytes", size, whole.size()), folder.path() + "/part");
    }
  }

  const Instance& instance_;
  const std::vector<std::string>& files_;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> rows_failures(const Instance& instance, const std::vector<std::string>& files) {
  const auto& table = instance.interface<chassis_rows_t>(CHASSIS_ROWS_ID);
  instance.require(
      CHASSIS_ROWS_ID,
      {{"open", table.open != nullptr}, {"next", table.next != nullptr}, {"close", table.close != nullptr}});
  return RowsExamination(instance, files).run();
}

}  // namespace chassis
