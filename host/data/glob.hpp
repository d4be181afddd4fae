// Patterns of paths.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace chassis {

// Whether the path has one of * ? [
bool is_glob(std::string_view path);
// All paths that match, sorted. "*", "?" and "[…]" match inside a name, "**" any number of folders, without links to
// folders. Names that begin with a dot match only if the pattern's name does. Throws if a folder cannot be read.
std::vector<std::string> glob(const std::string& pattern);
// The folder in front of the first name with one of * ? [
std::string glob_folder(const std::string& pattern);

}  // namespace chassis
