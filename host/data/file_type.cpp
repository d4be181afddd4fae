// The types of files in which each format may be.
#include "host/data/file_type.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "host/data/row_files.hpp"

namespace chassis {
namespace {

// The endings of text files, without those of compression.
constexpr std::array<std::pair<std::string_view, FileType>, 4> kTextFiles{{{".jsonl", FileType::kJsonLines},
                                                                           {".json", FileType::kJsonArray},
                                                                           {".csv", FileType::kCsv},
                                                                           {".txt", FileType::kPlainText}}};

constexpr std::string_view kParquet = ".parquet";

std::string_view without_packing(std::string_view path) {
  for (const std::string_view packed : {".gz", ".zst"})
    if (path.ends_with(packed)) return path.substr(0, path.size() - packed.size());
  return path;
}

// The values of a .csv file are strings.
bool has_only_strings(DataFormat format) {
  return format == DataFormat::kText || format == DataFormat::kAlpaca || format == DataFormat::kPromptCompletion ||
         format == DataFormat::kPreference || format == DataFormat::kLabelled || format == DataFormat::kClassification;
}

}  // namespace

FileType file_type(std::string_view path, const RowFiles* row_files) {
  if (path.ends_with(".bin")) return FileType::kTokens;
  const std::string_view unpacked = without_packing(path);
  for (const auto& [name, type] : kTextFiles) {
    if (unpacked.ends_with(name)) return type;
  }
  return path.ends_with(kParquet) || (row_files && row_files->reads(path)) ? FileType::kRows : FileType::kUnknown;
}

bool can_read(DataFormat format, FileType type) {
  switch (type) {
    case FileType::kJsonLines:
    case FileType::kJsonArray:
    case FileType::kRows:
      return true;
    case FileType::kCsv:
      return has_only_strings(format);
    case FileType::kPlainText:
      return format == DataFormat::kText;
    case FileType::kTokens:
      return format == DataFormat::kTokens;
    case FileType::kUnknown:
      return false;
  }
  return false;
}

std::string readable_names(const DataSetConfig& config) {
  std::vector<std::string> names;
  for (const auto& [name, type] : kTextFiles) {
    if (can_read(config.format, type)) names.emplace_back(name);
  }
  if (can_read(config.format, FileType::kTokens)) names.emplace_back(".bin");
  if (config.row_files) std::ranges::copy(config.row_files->endings(), std::back_inserter(names));
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == names.size() ? " or " : ", ", names[i]);
  return text;
}

void require_readable(const DataSetConfig& config, const std::string& path) {
  const FileType type = file_type(path, config.row_files);
  const std::string unused =
      config.row_files && !config.row_files->reads(path) ? config.row_files->hint_of_unused(path) : "";
  if (!unused.empty() && (type == FileType::kUnknown || type == FileType::kRows))
    throw config_error("no plugin that this run may use reads files of this name").hint(unused);
  if (type == FileType::kRows && (!config.row_files || !config.row_files->reads(path))) {
    throw config_error("no plugin of kind \"rows\" that reads .parquet files is installed with this program")
        .hint(
            "`chassis plugins list` shows the members of kind rows; one of another folder is used if plugins.pin names "
            "it. Or convert the file to .jsonl, for example with Python: pandas.read_parquet(\"a.parquet\")"
            ".to_json(\"a.jsonl\", orient=\"records\", lines=True)");
  }
  if (can_read(config.format, type)) return;
  const std::string names = readable_names(config);
  Error error = config_error(fmt::format("format \"{}\" reads {} files", to_text(config.format), names));
  if (type == FileType::kUnknown && path.ends_with(".tsv"))
    throw config_error("files that end in .tsv are not read by any format")
        .hint("convert it to .csv, with commas and quotes, or to .jsonl");
  if (type == FileType::kCsv) error.hint("a .csv file has only strings; convert it to .jsonl");
  if (type == FileType::kTokens) error.hint("files of token ids have format = \"tokens\"");
  if (path.ends_with(".idx")) error.hint("name the .bin file; its .idx file is found next to it");
  if (without_packing(path) != path && without_packing(path).ends_with(kParquet))
    error.hint("unpack it: the parts of a .parquet file are compressed inside");
  else if (type == FileType::kUnknown && (path.ends_with(".gz") || path.ends_with(".zst")))
    error.hint("text files may end in .gz or .zst, such as a.jsonl.gz");
  throw error;
}

}  // namespace chassis
