// Loads NCCL's library and looks up its functions.
#include "library.hpp"

#include <dlfcn.h>

namespace comm_nccl {
namespace {

constexpr int kOldestVersion = NCCL_VERSION(2, 19, 1);  // the first with ncclCommRegister

template <typename Function>
void look_up(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  if (out == nullptr) refuse("NCCL's library has no ", name, "; use version 2.19 or later");
}

}  // namespace

Library open_library(const std::string& path) {
  void* library = dlopen(path.empty() ? "libnccl.so.2" : path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    refuse("NCCL's library cannot be loaded: ", why == nullptr ? "unknown reason" : why,
           "; it comes with LibTorch's CUDA libraries, or name its path in [comm] library");
  }
  Library out;
#define COMM_NCCL_LOOK_UP(name) look_up(library, "nccl" #name, out.name);
  COMM_NCCL_FUNCTIONS(COMM_NCCL_LOOK_UP)
#undef COMM_NCCL_LOOK_UP
  int version = 0;
  out.GetVersion(&version);
  if (version < kOldestVersion)
    refuse("NCCL is version ", version / 10000, ".", version / 100 % 100, "; use 2.19 or later");
  return out;
}

}  // namespace comm_nccl
