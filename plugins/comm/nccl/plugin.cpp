// nccl: collectives between GPUs, by NVIDIA's NCCL.
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "chassis/plugin.hpp"
#include "group.hpp"
#include "shared_memory.hpp"

namespace comm_nccl {
namespace {

class Nccl final : public CommBackend {
 public:
  static constexpr std::string_view kDoc = "NCCL between GPUs";
  static constexpr uint32_t kProperties = CHASSIS_COMM_ROUNDS_HALVES;
  static constexpr bool kOnStream = true;
  static const Options& options() {
    static const Options schema = {
        option("library", "").doc("path of libnccl.so.2; empty: the one that LibTorch's CUDA part uses"),
        option("register_buffers", false)
            .doc("register buffers on first use, for zero-copy transfers; their memory must not return to CUDA during "
                 "the run"),
        option("high_priority", true).doc("collectives run before other work queued on the GPU"),
    };
    return schema;
  }

  explicit Nccl(const Host& host)
      : CommBackend(host),
        path_(option_value<std::string>(host, "library")),
        group_options_{option_value<bool>(host, "register_buffers"), option_value<bool>(host, "high_priority")} {}

  void supports(uint32_t device_type, int32_t) override {
    if (device_type != CHASSIS_DEVICE_CUDA)
      refuse("nccl serves CUDA memory",
             device_type == CHASSIS_DEVICE_CPU ? "; this run is on the CPU: use gloo" : " only");
    if (!library_) library_ = open_library(path_);
  }
  std::unique_ptr<BackendGroup> create_group(const CommGroupDesc& desc) override {
    supports(desc.device_type, desc.device_index);
    if (!std::exchange(is_shared_memory_checked_, true))
      if (const std::string text =
              shared_memory_warning(free_shared_bytes("/dev/shm"), std::getenv("NCCL_SHM_DISABLE"));
          !text.empty())
        host().count("little shared memory", text);
    return std::make_unique<NcclGroup>(*library_, desc, group_options_);
  }

 private:
  std::string path_;
  GroupOptions group_options_;
  std::optional<Library> library_;
  bool is_shared_memory_checked_ = false;
};

}  // namespace
}  // namespace comm_nccl

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "cuda=" CHASSIS_NCCL_CUDA
    "\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    comm_nccl::Nccl)
