// metrics.csv in the run directory: a row for each step and each evaluation, a column for each value (RFC 4180). A
// value that no row had before gets a new column; the file is then rewritten with the new header.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/plugin.hpp"
#include "chassis/sink.hpp"

namespace {

using namespace chassis;

constexpr std::string_view kFirst[] = {"step", "time"};

std::string number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  return {text, error == std::errc() ? end : text};
}

std::string csv_cell(std::string_view name) {
  if (name.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(name);
  std::string out = "\"";
  for (const char c : name) out.append(c == '"' ? 2 : 1, c);
  return out + '"';
}

std::vector<std::string> names_in(std::string_view header) {
  std::vector<std::string> names(1);
  bool is_quoted = false;
  for (size_t i = 0; i < header.size(); ++i) {
    const char c = header[i];
    if (c == '"' && is_quoted && i + 1 < header.size() && header[i + 1] == '"')
      names.back() += header[++i];
    else if (c == '"')
      is_quoted = !is_quoted;
    else if (c == ',' && !is_quoted)
      names.emplace_back();
    else if (c != '\r')
      names.back() += c;
  }
  return names;
}

class Csv final : public Sink {
 public:
  static constexpr std::string_view kDoc = "metrics.csv in the run directory, a row for each step and evaluation";

  using Sink::Sink;
  ~Csv() override { close(); }

  void start(const chassis_sink_start_t& start) override {
    path_ = std::string(text_of(start.output_dir)) + "/metrics.csv";
    names_.assign(std::begin(kFirst), std::end(kFirst));
    if (std::filesystem::exists(path_))
      rewrite(start.first_step);
    else
      open("w"), write_header();
    flush();
  }

  void scalars(int64_t step, double time, std::span<const chassis_scalar_t> scalars) override {
    std::vector<std::string> row(names_.size());
    row[0] = std::to_string(step), row[1] = number(time);
    const size_t known = names_.size();
    for (const chassis_scalar_t& scalar : scalars) {
      const size_t column = column_of(text_of(scalar.name));
      if (column >= row.size()) row.resize(column + 1);
      row[column] = number(scalar.value);
    }
    if (names_.size() > known) rewrite(INT64_MAX);
    std::string line;
    for (const std::string& cell : row) line += (line.empty() ? "" : ",") + cell;
    write(line);
  }

  void flush() override {
    if (file_ != nullptr && std::fflush(file_) != 0) fail("writing");
  }
  void finish(const chassis_sink_finish_t&) override {
    flush();
    close();
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Failure(CHASSIS_UNAVAILABLE, what, " '", path_, "': ", std::strerror(errno));
  }

  // Rows have their values in the same order, so the last place that was found is a good guess.
  size_t column_of(std::string_view name) {
    for (size_t i = 0; i < names_.size(); ++i) {
      const size_t column = (guess_ + i) % names_.size();
      if (names_[column] == name) return guess_ = column + 1, column;
    }
    names_.emplace_back(name);
    return names_.size() - 1;
  }

  void open(const char* mode) {
    close();
    file_ = std::fopen(path_.c_str(), mode);
    if (file_ == nullptr) fail("opening");
  }
  void close() {
    if (file_ != nullptr) std::fclose(file_);
    file_ = nullptr;
  }
  void write(const std::string& line) {
    if (file_ == nullptr) open("a");
    if (std::fputs((line + "\n").c_str(), file_) < 0) fail("writing");
  }
  void write_header() {
    std::string line;
    for (const std::string& name : names_) line += (line.empty() ? "" : ",") + csv_cell(name);
    write(line);
  }

  // Rewrites the file: a header with all columns, the known ones first in their order, then the rows up to a step.
  void rewrite(int64_t last_step) {
    close();
    std::ifstream old(path_);
    std::string header;
    if (!old || !std::getline(old, header)) header.clear();
    std::vector<std::string> before = names_in(header);
    if (before.size() < 2 || before[0] != kFirst[0] || before[1] != kFirst[1])
      throw Failure(CHASSIS_ALREADY_EXISTS, "'", path_,
                    "' is not a file of this sink: it does not begin with step,time");
    for (const std::string& name : names_)
      if (std::find(before.begin(), before.end(), name) == before.end()) before.push_back(name);
    names_ = std::move(before);
    const std::string target = path_;
    path_ += ".new";
    open("w");
    write_header();
    for (std::string line; std::getline(old, line);) {
      int64_t step = 0;
      const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
      if (error != std::errc() || *end != ',' || step > last_step) continue;
      // Every row has as many cells as the header; its values have no commas.
      const auto cells = static_cast<size_t>(std::count(line.begin(), line.end(), ',')) + 1;
      if (cells < names_.size()) line.append(names_.size() - cells, ',');
      write(line);
    }
    if (std::fflush(file_) != 0) fail("writing");
    close();
    if (std::rename(path_.c_str(), target.c_str()) != 0) fail("renaming");
    path_ = target;
  }

  std::string path_;
  std::vector<std::string> names_;  // of the columns
  size_t guess_ = 0;
  std::FILE* file_ = nullptr;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "license=Apache-2.0\n",
    Csv)
