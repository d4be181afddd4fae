// Which formats may be in which files.
#include "host/data/file_type.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>
#include <vector>

namespace chassis {
namespace {

// Of text files, the names without compression.
constexpr std::array<std::pair<std::string_view, FileType>, 4> kTextFiles{{{".jsonl", FileType::kJsonLines},
                                                                           {".json", FileType::kJsonArray},
                                                                           {".csv", FileType::kCsv},
                                                                           {".txt", FileType::kPlainText}}};

// The values of a .csv file are strings.
bool has_only_strings(DataFormat format) {
  return format == DataFormat::kText || format == DataFormat::kAlpaca || format == DataFormat::kPromptCompletion ||
         format == DataFormat::kPreference;
}

}  // namespace

FileType file_type(std::string_view path) {
  if (path.ends_with(".bin")) return FileType::kTokens;
  if (path.ends_with(".parquet")) return FileType::kParquet;
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (path.ends_with(packed)) {
      path.remove_suffix(packed.size());
      break;
    }
  }
  for (const auto& [name, type] : kTextFiles) {
    if (path.ends_with(name)) return type;
  }
  return FileType::kUnknown;
}

bool can_read(DataFormat format, FileType type) {
  switch (type) {
    case FileType::kJsonLines:
    case FileType::kJsonArray:
      return true;
    case FileType::kCsv:
      return has_only_strings(format);
    case FileType::kPlainText:
      return format == DataFormat::kText;
    case FileType::kTokens:
      return format == DataFormat::kTokens;
    case FileType::kParquet:
    case FileType::kUnknown:
      return false;
  }
  return false;
}

std::string readable_names(DataFormat format) {
  std::vector<std::string_view> names;
  for (const auto& [name, type] : kTextFiles) {
    if (can_read(format, type)) names.push_back(name);
  }
  if (can_read(format, FileType::kTokens)) names.push_back(".bin");
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == names.size() ? " or " : ", ", names[i]);
  return text;
}

void require_readable(DataFormat format, const std::string& path) {
  const FileType type = file_type(path);
  if (can_read(format, type)) return;
  if (type == FileType::kParquet) {
    throw config_error(".parquet files are not read")
        .hint(
            "convert it to .jsonl, for example with Python: pandas.read_parquet(\"a.parquet\")"
            ".to_json(\"a.jsonl\", orient=\"records\", lines=True)");
  }
  Error error = config_error(fmt::format("format \"{}\" reads {} files", to_text(format), readable_names(format)));
  if (type == FileType::kCsv) error.hint("a .csv file has only strings; convert it to .jsonl");
  if (type == FileType::kTokens) error.hint("files of token ids have format = \"tokens\"");
  if (path.ends_with(".idx")) error.hint("name the .bin file; its .idx file is found beside it");
  if (type == FileType::kUnknown && (path.ends_with(".gz") || path.ends_with(".zst")))
    error.hint("text files may end in .gz or .zst, such as a.jsonl.gz");
  throw error;
}

}  // namespace chassis
