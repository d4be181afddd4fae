// Reads files as the host does, in other numbers of rows, and damaged.
#include "host/conformance/rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <thread>
#include <utility>

#include "chassis/kind/rows.h"
#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/conformance/tokenizer.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

constexpr uint64_t kSomeRows = 7;
constexpr size_t kMaxRows = 1000;  // that are examined of a file

struct Refusal {
  int32_t code = CHASSIS_OK;
  std::string text;
};

// A file that is open.
class ReadFile {
 public:
  ReadFile(const Instance& instance, const std::string& path)
      : instance_(instance), table_(instance.interface<chassis_rows_t>(CHASSIS_ROWS_ID)) {
    chassis_row_file_info_t info{};
    info.struct_size = sizeof info;
    take(table_.open(instance_.get("open"), str_of(path), &info, &file_));
    num_rows_ = info.num_rows;
  }
  ~ReadFile() {
    if (file_) table_.close(instance_.get("close"), file_);
  }
  ReadFile(const ReadFile&) = delete;
  ReadFile& operator=(const ReadFile&) = delete;

  // False at the end, and after an error.
  bool next(uint64_t max_rows) {
    if (refusal_ || !fault_.empty()) return false;
    const chassis_row_sink_t sink = {sizeof sink, 0, &rows_, [](const chassis_row_sink_t* self, chassis_str_t json) {
                                       auto& rows = *static_cast<std::vector<std::string>*>(self->impl);
                                       guarded_void([&] { rows.emplace_back(view_of(json)); });
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
  uint64_t num_bytes_ = 0;
  std::vector<std::string> rows_;
  std::optional<Refusal> refusal_;
  std::string fault_;
};

class RowsExamination {
 public:
  RowsExamination(const Instance& instance, const std::string& file) : instance_(instance), file_(file) {}

  std::vector<std::string> run() {
    examine_refusals();
    if (!file_.empty()) examine_rows();
    if (!file_.empty() && failures_.empty()) examine_damage();
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

  void examine_rows() {
    ReadFile whole(instance_, file_);
    whole.read(kMaxRows);
    if (whole.refusal()) return fail("{}: refused: {}", file_, whole.refusal()->text);
    if (!whole.fault().empty()) return fail("{}: {}", file_, whole.fault());
    const std::vector<std::string>& rows = whole.rows();
    const bool is_whole = rows.size() < kMaxRows;
    if (whole.num_rows() >= 0 && is_whole && rows.size() != static_cast<uint64_t>(whole.num_rows()))
      fail("{}: gives {} rows, and open says {}", file_, rows.size(), whole.num_rows());
    for (size_t i = 0; i < rows.size(); ++i) {
      try {
        if (!parse_json(rows[i], "the row").is_object())
          fail("row {} is no JSON object: {}", i + 1, printable(rows[i], 80));
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
    ReadFile one(instance_, file_), some(instance_, file_);
    while (one.rows().size() < kMaxRows && (one.next(1) | some.next(kSomeRows))) {
    }
    one.read(1);
    some.read(kSomeRows);
    const auto compare = [&](const ReadFile& other, uint64_t max_rows) {
      const std::string reason = other.refusal() ? other.refusal()->text : other.fault();
      if (!same(other))
        fail("other rows if {} at a time are read, beside another open file{}", max_rows,
             reason.empty() ? "" : ": " + reason);
    };
    compare(one, 1);
    compare(some, kSomeRows);
    std::array<bool, 4> equal{};
    std::vector<std::thread> threads;
    for (bool& mine : equal)
      threads.emplace_back([&, out = &mine] {
        try {
          ReadFile file(instance_, file_);
          file.read(kSomeRows);
          *out = same(file);
        } catch (...) {
          *out = false;
        }
      });
    for (std::thread& thread : threads) thread.join();
    if (!std::all_of(equal.begin(), equal.end(), [](bool e) { return e; }))
      fail("other rows in 4 threads that read the file at once");
  }

  void examine_damage() {
    const std::string whole = read_file(file_);
    constexpr int kNumParts = 16;
    for (int part = 1; part < kNumParts; ++part) {
      const size_t size = whole.size() * static_cast<size_t>(part) / kNumParts;
      const TokenizerFolder folder({{"part", whole.substr(0, size)}});
      may_refuse(fmt::format("the first {} of {} bytes", size, whole.size()), folder.path() + "/part");
    }
  }

  const Instance& instance_;
  const std::string& file_;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> rows_failures(const Instance& instance, const std::string& file) {
  const auto& table = instance.interface<chassis_rows_t>(CHASSIS_ROWS_ID);
  instance.require(
      CHASSIS_ROWS_ID,
      {{"open", table.open != nullptr}, {"next", table.next != nullptr}, {"close", table.close != nullptr}});
  return RowsExamination(instance, file).run();
}

}  // namespace chassis
