// Checks that /dev/shm has room for the data that NCCL passes through it between the GPUs of a machine. Containers have
// 64 MiB by default.
#pragma once

#include <sys/statvfs.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace comm_nccl {

// The size that NVIDIA recommends for containers: `docker run --shm-size=1g` (NCCL User Guide, "Sharing Data").
constexpr uint64_t kRecommendedSharedBytes = uint64_t{1} << 30;

// Free bytes of the file system of a folder; nothing if they cannot be determined.
inline std::optional<uint64_t> free_shared_bytes(const char* folder) {
  struct statvfs info {};
  if (statvfs(folder, &info) != 0) return std::nullopt;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

// `disabled`: the value of NCCL_SHM_DISABLE, or NULL. Empty if there is nothing to report.
inline std::string shared_memory_warning(std::optional<uint64_t> free_bytes, const char* disabled) {
  if (!free_bytes || *free_bytes >= kRecommendedSharedBytes) return "";
  if (disabled != nullptr && std::string_view(disabled) == "1") return "";
  return "/dev/shm has " + std::to_string(*free_bytes >> 20) + " MiB free, and NCCL may need up to " +
         std::to_string(kRecommendedSharedBytes >> 20) +
         " MiB there between the GPUs of a machine: start the container with `docker run --shm-size=1g` or --ipc=host "
         "(Kubernetes: an emptyDir with medium: Memory at /dev/shm), or set NCCL_SHM_DISABLE=1";
}

}  // namespace comm_nccl
