// Reads the JSON of rows: the parser of the format needs the names of the classes, which are to be found here.
#include "host/command/init/label_scan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>

#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/data/data_files.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/record_reader.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMaxRows = 100000;
constexpr size_t kMaxClasses = 10000;

// A number in a text, as in a .csv file.
std::optional<double> number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.get_ref<const std::string&>();
  size_t end = 0;
  try {
    const double number = std::stod(text, &end);
    return end == text.size() ? std::optional(number) : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

class Labels {
 public:
  void add(const Json& row, const std::map<std::string, std::string>& columns, const SourcePosition& where) {
    where_ = where;
    const auto value = [&](const char* name) {
      const auto renamed = columns.find(name);
      const auto found = row.find(renamed == columns.end() ? name : renamed->second);
      return found == row.end() || found->is_null() ? Json() : *found;
    };
    scan_.has_texts |= value("text").is_string();
    if (const Json label = value("label"); !label.is_null()) {
      add_label(label);
    } else if (const Json labels = value("labels"); labels.is_array()) {
      add_labels(labels);
    } else if (const Json values = value("values"); values.is_array()) {
      set_kind("regression"), set_size(values.size());
    } else if (!value("value").is_null()) {
      set_kind("regression"), set_size(1);
    }
  }

  LabelScan finish() {
    if (!names_.empty()) {
      std::ranges::copy(names_, std::back_inserter(scan_.classes));
      scan_.num_labels = names_.size();
    } else if (scan_.kind == "single" && has_fractions_) {
      scan_.kind = "regression";
      scan_.num_labels = 1;
    } else if (scan_.kind == "single") {
      scan_.num_labels = static_cast<uint64_t>(largest_) + 1;
    }
    if (scan_.kind != "regression") scan_.num_labels = std::max<uint64_t>(scan_.num_labels, 2);
    return std::move(scan_);
  }

 private:
  void add_label(const Json& label) {
    set_kind("single");
    const std::optional<double> number = number_of(label);
    if (!number) return add_name(label);
    has_numbers_ = true;
    has_fractions_ |= std::floor(*number) != *number || *number < 0;
    largest_ = std::clamp(*number, largest_, 1e6);
    refuse_mixture();
  }

  void add_labels(const Json& labels) {
    set_kind("multi");
    if (!labels.empty() && labels[0].is_string()) {
      for (const Json& name : labels) add_name(name);
    } else if (!labels.empty()) {
      has_numbers_ = true;
      refuse_mixture();
      set_size(labels.size());
    }
  }

  void add_name(const Json& name) {
    if (!name.is_string()) return;  // the parser refuses it
    if (names_.insert(name.get<std::string>()).second && names_.size() > kMaxClasses)
      throw error(fmt::format("there are more than {} different labels", kMaxClasses));
    refuse_mixture();
  }

  void set_kind(const char* kind) {
    if (!is_first_ && scan_.kind != kind)
      throw error("the row has another sort of label than those before it: label, labels, value or values");
    scan_.kind = kind;
    is_first_ = false;
  }

  void set_size(size_t size) {
    if (scan_.num_labels != 0 && scan_.num_labels != size)
      throw error(fmt::format("the row has {} labels, and those before it {}", size, scan_.num_labels))
          .hint("labels are 0 or 1 for each class, or names of classes; values are numbers, all in each row");
    scan_.num_labels = size;
  }

  void refuse_mixture() const {
    if (has_numbers_ && !names_.empty()) throw error("labels are names in some rows and numbers in others");
  }

  Error error(std::string message) const { return Error(ExitCode::kConfig, where_, std::move(message)); }

  LabelScan scan_;
  std::set<std::string> names_;
  double largest_ = 0;
  bool is_first_ = true, has_numbers_ = false, has_fractions_ = false;
  SourcePosition where_;
};

}  // namespace

LabelScan scan_labels(const std::string& path, const std::map<std::string, std::string>& columns, RowFiles* row_files) {
  DataSetConfig set;
  set.path = path;
  set.format = DataFormat::kClassification;
  set.columns = columns;
  set.key = "--data";
  set.row_files = row_files;
  Labels labels;
  uint64_t num_rows = 0;
  for (const std::string& file : data_files(set)) {
    const auto rows = open_rows(file, set);
    for (RawRow raw; rows->next(raw); ++num_rows) {
      if (num_rows == kMaxRows) {
        LabelScan part = labels.finish();
        part.is_part = true;
        return part;
      }
      const Json row = parse_json_or_null(raw.bytes);  // what is no object is refused when rows are parsed
      if (row.is_object()) labels.add(row, columns, line_position(file, raw.line));
    }
  }
  return labels.finish();
}

}  // namespace chassis
