// Files of single ranks in a folder of the run directory.
#pragma once

#include <string>
#include <string_view>

#include "host/base/file.hpp"

namespace chassis {

// Writes or replaces "FOLDER/rank-N.json", and returns its path. Throws a storage error, also if the folder is a link.
inline std::string write_report(const std::string& folder, int rank, std::string_view text) {
  if (const PathKind kind = path_kind_nofollow(folder); kind != PathKind::kAbsent && kind != PathKind::kDirectory)
    throw storage_error("'" + folder + "' is in the way: it is not a directory").hint("move it away");
  create_directories(folder);
  std::string path = folder + "/rank-" + std::to_string(rank) + ".json";
  write_file_atomic(path, text);
  return path;
}

}  // namespace chassis
