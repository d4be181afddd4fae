// Reads no more than the beginning of the file.
#include "host/command/page_file.hpp"

#include "host/base/error.hpp"
#include "host/base/file.hpp"

namespace chassis {

void refuse_other_page(const std::string& path, std::string_view head, std::string_view what) {
  if (path.empty() || path_kind(path) != PathKind::kFile) return;
  std::string found(head.size(), '\0');
  found.resize(File::open_read(path).pread_some(found.data(), found.size(), 0));
  if (!found.empty() && found != head)
    throw storage_error("--html " + path + ": this file is not a " + std::string(what) +
                        " written by this program, and is not replaced")
        .hint("choose another name, or move the file away");
}

}  // namespace chassis
