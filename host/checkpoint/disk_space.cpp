// The file system's own count of what is free.
#include "host/checkpoint/disk_space.hpp"

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/units.hpp"

namespace chassis {
namespace {

// Space for the other files: manifest, text files, directories.
constexpr uint64_t kReserveBytes = uint64_t{1} << 20;

}  // namespace

void check_space(uint64_t file_bytes, const std::string& parent) {
  create_directories(parent);
  const uint64_t needed = file_bytes + kReserveBytes, free = free_bytes(parent);
  if (needed > free) {
    throw storage_error("'" + parent + "' has " + bytes_text(free) + " free, a checkpoint takes " +
                        bytes_text(file_bytes) + ", and " + bytes_text(kReserveBytes) + " for its other files")
        .with("free_bytes", std::to_string(free))
        .with("needed_bytes", std::to_string(needed))
        .hint(
            "free some space, or choose another place (run.output_dir, --out); checkpoint.keep_last keeps fewer "
            "checkpoints");
  }
}

}  // namespace chassis
