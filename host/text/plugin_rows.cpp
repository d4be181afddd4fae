// Calls plugins of kind "rows" and checks every result.
#include "host/text/plugin_rows.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <thread>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/data/line_reader.hpp"
#include "host/plugin/option_schema.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

// The most rows that are requested at a time.
constexpr uint64_t kBlockBytes = uint64_t{256} << 10;
constexpr uint64_t kBlockRows = 256;

// Throws a fault of the file as a config error at the file or at one of its rows, and any other failure as it is.
void throw_at(const Instance& instance, const std::string& path, uint64_t row, chassis_status_t* status) {
  if (status == nullptr) return;
  const int32_t code = status_code(status);
  const bool of_file = code == CHASSIS_INVALID_ARGUMENT || code == CHASSIS_DATA_LOSS || code == CHASSIS_NOT_FOUND;
  if (!of_file) instance.check(status);
  const std::string text = status_text(status);
  status_release(status);
  Error error(ExitCode::kConfig, row == 0 ? SourcePosition{path, 0, 0} : line_position(path, row), text);
  if (code == CHASSIS_DATA_LOSS) error.hint("copy or download the file again");
  throw error;
}

class PluginRowReader final : public RowReader {
 public:
  PluginRowReader(const Instance& instance, std::string path)
      : instance_(instance),
        table_(instance.interface<chassis_rows_t>(CHASSIS_ROWS_ID)),
        path_(std::move(path)),
        num_file_bytes_(std::filesystem::file_size(path_)) {
    chassis_row_file_info_t info{};
    info.struct_size = sizeof info;
    info.num_rows = -1;
    {
      const CalledInstance self = instance_.get("open");
      throw_at(instance_, path_, 0, call_plugin([&] { return table_.open(self, str_of(path_), &info, &file_); }));
    }
    if (file_ == nullptr) throw refusal("opens no file, and returns no error");
    num_rows_of_file_ = info.num_rows;
    if (num_rows_of_file_ < -1) {
      close();
      throw refusal(fmt::format("says that the file has {} rows, expected a number or -1", num_rows_of_file_));
    }
  }
  ~PluginRowReader() override {
    if (file_) close();
  }

  bool next(RawRow& row) override {
    while (next_ == block_.size()) {
      if (error_) std::rethrow_exception(error_);
      if (ended_) return false;
      read_block();
    }
    row.kind = RowKind::kJson;
    row.is_table = true;
    row.maker = instance_.label();
    row.line = ++num_taken_;
    row.bytes = std::move(block_[next_++]);
    if (row.bytes.size() > kMaxDocumentBytes) throw too_long_error(line_position(path_, row.line), "row");
    return true;
  }

  uint64_t num_bytes_read() const override { return ended_ ? num_file_bytes_ : num_bytes_; }
  void set_poll(std::function<void()> poll) override { poll_ = std::move(poll); }

 private:
  void close() noexcept {
    const CalledInstance self = instance_.get("close");
    guarded_end([&] { table_.close(self, file_); });
  }
  void read_block() {
    if (poll_) poll_();
    block_.clear();
    next_ = 0;
    const uint64_t bytes_of_row = num_given_ == 0 ? kBlockBytes : std::max<uint64_t>(1, num_row_bytes_ / num_given_);
    const uint64_t max_rows = std::clamp<uint64_t>(kBlockBytes / bytes_of_row, 1, kBlockRows);
    chassis_rows_read_t read{};
    read.struct_size = sizeof read;
    const chassis_row_sink_t sink = {sizeof sink, 0, this, [](const chassis_row_sink_t* self, chassis_str_t json) {
                                       static_cast<PluginRowReader*>(self->impl)->take(view_of(json));
                                     }};
    reading_thread_ = std::this_thread::get_id();
    const CalledInstance self = instance_.get("next");
    chassis_status_t* const status = call_plugin([&] { return table_.next(self, file_, max_rows, &sink, &read); });
    num_given_ += block_.size();
    try {
      throw_at(instance_, path_, num_given_ + 1, status);
      if (thrown_) std::rethrow_exception(thrown_);
      check(read, max_rows);
    } catch (...) {
      error_ = std::current_exception();  // thrown after the rows before it were returned
      return;
    }
    num_bytes_ = std::min(read.num_bytes, num_file_bytes_);
    ended_ = block_.empty();
  }

  // Called by the plugin.
  void take(std::string_view json) noexcept {
    if (std::this_thread::get_id() != reading_thread_) {
      other_thread_ = true;
      return;
    }
    try {
      if (json.find_first_of("\r\n") != json.npos) num_broken_ = std::max<uint64_t>(num_broken_, block_.size() + 1);
      num_row_bytes_ += json.size();
      block_.emplace_back(json);
    } catch (...) {
      thrown_ = std::current_exception();
    }
  }

  void check(const chassis_rows_read_t& read, uint64_t max_rows) const {
    if (other_thread_) throw refusal("gives rows to the sink on another thread than the one that called next");
    if (num_broken_ > 0)
      throw refusal(fmt::format("row {} has a line break between its values; it must be one line of JSON",
                                num_given_ - block_.size() + num_broken_));
    if (read.num_rows != block_.size() || block_.size() > max_rows)
      throw refusal(fmt::format("gives {} rows to the sink of {} that are asked for, and says that it gives {}",
                                block_.size(), max_rows, read.num_rows));
    if (read.num_bytes < num_bytes_)
      throw refusal(fmt::format("has read {} bytes, and before it {}", read.num_bytes, num_bytes_));
    if (read.num_bytes > num_file_bytes_ + kMaxLineEndBytes)
      throw refusal(fmt::format("has read {} bytes of a file of {}", read.num_bytes, num_file_bytes_));
    if (num_rows_of_file_ < 0) return;
    const auto announced = static_cast<uint64_t>(num_rows_of_file_);
    if (num_given_ > announced || (block_.empty() && num_given_ != announced))
      throw refusal(fmt::format("gives {} rows of a file that has {}", num_given_, announced));
  }
  Error refusal(const std::string& what) const {
    return plugin_error(fmt::format("{}: {}: {}", instance_.label(), path_, what));
  }

  const Instance& instance_;
  const chassis_rows_t& table_;
  std::string path_;
  uint64_t num_file_bytes_;
  void* file_ = nullptr;
  int64_t num_rows_of_file_ = -1;
  std::vector<std::string> block_;
  size_t next_ = 0;  // index into block_
  uint64_t num_taken_ = 0, num_given_ = 0, num_row_bytes_ = 0, num_bytes_ = 0;
  uint64_t num_broken_ = 0;  // number of a row of the block with a line break; 0: none
  std::thread::id reading_thread_;
  std::atomic<bool> other_thread_ = false;
  std::exception_ptr error_, thrown_;
  std::function<void()> poll_;
  bool ended_ = false;
};

}  // namespace

PluginRows::PluginRows(PluginRegistry& registry) : registry_(registry) {
  const PluginIndex& index = registry.index();
  // In the order of the folders: a plugin that the user pins comes before one of the program's own folder.
  for (const PluginFile& file : index.files()) {
    const bool may_read =
        registry.is_pinned(file) || (!registry.loads_only_pinned() && index.is_installed_with_program(file.path));
    for (const MemberName& member : file.manifest.members) {
      if (member.kind != "rows" || index.find(member.kind, member.id) != &file) continue;
      for (const std::string& pattern : file.manifest.files)
        (may_read ? patterns_ : unused_).push_back({pattern, member.id, file.path, file.manifest.id});
    }
  }
}

std::vector<std::string> PluginRows::endings() const {
  std::vector<std::string> endings;
  for (const Pattern& known : patterns_)
    endings.push_back(known.text.starts_with('*') ? known.text.substr(1) : known.text);
  std::ranges::sort(endings);
  endings.erase(std::unique(endings.begin(), endings.end()), endings.end());
  return endings;
}

const PluginRows::Pattern* PluginRows::find(const std::vector<Pattern>& patterns, std::string_view path) {
  const std::string name(path.substr(path.rfind('/') + 1));
  for (const Pattern& pattern : patterns)
    if (::fnmatch(pattern.text.c_str(), name.c_str(), 0) == 0) return &pattern;
  return nullptr;
}

std::string PluginRows::member_of(std::string_view path) const {
  const Pattern* const found = find(patterns_, path);
  return found ? found->member : "";
}

std::string PluginRows::hint_of_unused(std::string_view path) const {
  const Pattern* const found = find(unused_, path);
  if (found == nullptr) return "";
  return fmt::format(
      "member rows/{} of {} names {}; it is used if the configuration pins it: [plugins] pin = {{ {} = "
      "\"sha256:{}\" }}",
      found->member, printable(found->file, 4096), found->text, found->library, sha256_file(found->file));
}

std::string PluginRows::lines_of(const UsedColumns& columns) {
  std::string lines;
  for (const std::string& column : columns) {
    if (column.find('\n') != column.npos) return "";
    lines += column + "\n";
  }
  return lines;
}

// Like registry.open(), but passes the columns to a member that has an option for them.
std::unique_ptr<Instance> PluginRows::instance_of(const std::string& member, const std::string& columns) {
  const std::vector<OptionSpec>& specs = registry_.option_specs("rows", member);
  const bool chooses = std::ranges::any_of(
      specs, [](const OptionSpec& spec) { return spec.name == "columns" && spec.type == OptionType::kString; });
  if (!chooses || columns.empty()) return registry_.open("rows", member);
  Json options = default_options(specs, "rows/" + member);
  options["columns"] = columns;
  auto instance = registry_.create("rows", member, std::move(options));
  PluginRegistry::start(*instance);
  return instance;
}

std::string PluginRows::prepare(const std::string& path, const UsedColumns& columns) {
  const std::string member = member_of(path);
  CHASSIS_CHECK(!member.empty(), "a plugin reads files of this name");
  std::unique_ptr<Instance>& instance = instances_[member + "\n" + lines_of(columns)];
  if (!instance) {
    auto opened = instance_of(member, lines_of(columns));
    const auto& table = opened->interface<chassis_rows_t>(CHASSIS_ROWS_ID);
    opened->require(
        CHASSIS_ROWS_ID,
        {{"open", table.open != nullptr}, {"next", table.next != nullptr}, {"close", table.close != nullptr}});
    instance = std::move(opened);
  }
  return member + " " + instance->library().content_text();
}

std::unique_ptr<RowReader> PluginRows::open(const std::string& path, const UsedColumns& columns) const {
  const auto found = instances_.find(member_of(path) + "\n" + lines_of(columns));
  CHASSIS_CHECK(found != instances_.end(), "prepare() comes before open()");
  return open_plugin_rows(*found->second, path);
}

std::unique_ptr<RowReader> open_plugin_rows(const Instance& instance, const std::string& path) {
  return std::make_unique<PluginRowReader>(instance, path);
}

}  // namespace chassis
