// `chassis ckpt`: looks at checkpoints from outside.
#include <cstdio>
#include <filesystem>

#include "host/base/units.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/command/command.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

// A run directory, its checkpoints folder, or any folder with checkpoints.
std::string checkpoint_root(const std::string& path) {
  if (!fs::is_directory(path)) throw storage_error("there is no directory " + path);
  return fs::is_directory(path + "/checkpoints") ? path + "/checkpoints" : path;
}

int list(const std::string& path) {
  const auto found = list_checkpoints(checkpoint_root(path));
  if (found.empty()) throw storage_error(path + " has no checkpoint");
  for (const std::string& line : checkpoint_table(found)) std::printf("%s\n", line.c_str());
  return 0;
}

int verify_one(const std::string& path) {
  const BucketPair buckets(16 << 20);
  const VerifyResult result = verify_checkpoint(path, buckets);
  for (const std::string& defect : result.defects) std::printf("%s\n", defect.c_str());
  std::printf("%s %s: %llu tensors, %s in %llu files\n", result.ok() ? "ok" : "DAMAGED", path.c_str(),
              static_cast<unsigned long long>(result.num_tensors), bytes_text(result.num_bytes).c_str(),
              static_cast<unsigned long long>(result.num_files));
  return result.ok() ? 0 : static_cast<int>(ExitCode::kStorage);
}

int verify(const std::string& path) {
  if (fs::exists(path + "/" + kManifestName)) return verify_one(path);
  int code = 0;
  const auto found = list_checkpoints(checkpoint_root(path));
  if (found.empty()) throw storage_error(path + " has no checkpoint");
  for (const CheckpointInfo& info : found) {
    if (!info.defect.empty()) {
      std::printf("DAMAGED %s: %s\n", info.path.c_str(), info.defect.c_str());
      code = static_cast<int>(ExitCode::kStorage);
      continue;
    }
    if (const int one = verify_one(info.path)) code = one;
  }
  return code;
}

}  // namespace

Verb add_ckpt(CLI::App& app) {
  app.require_subcommand(1);
  auto path = std::make_shared<std::string>();
  CLI::App* ls = app.add_subcommand("ls", "checkpoints of a run, with sizes and validity");
  CLI::App* check = app.add_subcommand("verify", "read every byte and compare all checksums");
  for (CLI::App* verb : {ls, check}) verb->add_option("path", *path, "a run directory or a checkpoint")->required();
  return [=] { return ls->parsed() ? list(*path) : verify(*path); };
}

}  // namespace chassis
