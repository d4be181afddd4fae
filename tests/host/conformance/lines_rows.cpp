// A member of kind rows for tests: files *.rows, whose lines are the rows and which end with a line "end". The
// environment variable NONCONFORMING selects a fault.
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "chassis/plugin.hpp"
#include "chassis/rows.hpp"

namespace {

using namespace chassis;

bool has(std::string_view fault) {
  const char* chosen = std::getenv("NONCONFORMING");
  return chosen != nullptr && fault == chosen;
}

class LinesFile : public RowFile {
 public:
  explicit LinesFile(std::string_view path)
      : path_hash_(std::hash<std::string_view>()(path)), file_(std::string(path)) {
    last_opened_ = path_hash_;
    if (!file_) throw Failure(has("another code") ? CHASSIS_INTERNAL : CHASSIS_NOT_FOUND, "there is no such file");
    if (file_.peek() != std::char_traits<char>::eof()) return;
    if (has("no words")) fail_invalid("");
    throw Failure(CHASSIS_DATA_LOSS, "empty");
  }
  int64_t num_rows() const override { return has("wrong count") ? 1 : has("negative count") ? -7 : -1; }
  void next(uint64_t max_rows, RowSink& out) override {
    if (has("ends early") && ++num_calls_ > 2) return;
    if (has("too many")) ++max_rows;
    for (std::string line; out.num_rows() < max_rows && !ended_;) {
      if (!std::getline(file_, line)) throw Failure(CHASSIS_DATA_LOSS, "column 'x': the file has no end");
      ended_ = line == "end";
      if (ended_ && has("never ends")) {
        file_.seekg(0);
        ended_ = false;
        continue;
      }
      if (!ended_ && !line.starts_with('{')) fail_invalid("not a file of rows");
      num_bytes_ += line.size() + 1;
      if (has("line breaks")) line = "{\n" + line.substr(1);
      if (has("shares a state") && last_opened_ != path_hash_) line = "{\"other\": 1}";
      if (has("leaks")) {
        static std::mutex lock;
        static std::vector<std::vector<char>> leaked;  // reachable, so that only the check finds it
        const std::lock_guard guard(lock);
        leaked.emplace_back(1 << 20);
      }
      if (!ended_ && has("another thread"))
        std::thread([&] { out.row(line); }).join();
      else if (!ended_)
        out.row(has("no JSON") ? "{" : line);
    }
  }
  uint64_t num_bytes_read() const override { return has("goes back") && num_bytes_ > 20 ? 1 : num_bytes_; }

 private:
  static inline std::atomic<size_t> last_opened_ = 0;
  size_t path_hash_;
  std::ifstream file_;
  uint64_t num_bytes_ = 0, num_calls_ = 0;
  bool ended_ = false;
};

class Lines : public Rows {
 public:
  static constexpr std::string_view kDoc = "test: lines of *.rows";
  using Rows::Rows;
  std::unique_ptr<RowFile> open(std::string_view path) const override { return std::make_unique<LinesFile>(path); }
};

}  // namespace

CHASSIS_PLUGIN("file=*.rows\nlicense=Apache-2.0\n", Lines)
