#include "host/checkpoint/output_place.hpp"

#include <filesystem>
#include <system_error>

#include "host/base/error.hpp"
#include "host/checkpoint/manifest.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

// Without links as far as it exists, and without a "/" at the end.
fs::path resolved(const std::string& path) {
  std::error_code error;
  fs::path whole = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) throw storage_error("cannot look at '" + path + "': " + error.message());
  return whole.has_filename() ? whole : whole.parent_path();
}

Error refusal(const std::string& directory, const std::string& why) {
  return storage_error("'" + directory + "' is not written: " + why).hint("choose another directory");
}

}  // namespace

OutputPlace::OutputPlace(const std::string& directory, const std::vector<std::string>& sources,
                         bool becomes_resumable) {
  const fs::path target = resolved(directory);
  for (const std::string& source : sources)
    if (!source.empty() && resolved(source) == target) throw refusal(directory, "it is what is read");
  std::string root;  // of the checkpoints of the run that it lies in
  for (fs::path above = target.parent_path(); root.empty(); above = above.parent_path()) {
    if (link_kind((above / kManifestName).string()) != PathKind::kAbsent)
      throw refusal(directory, "it lies inside of the checkpoint '" + above.string() + "'");
    if (is_checkpoint_root(above.string())) {
      if (!becomes_resumable)
        throw refusal(directory, "it lies among the checkpoints of a run, in '" + above.string() + "'");
      root = above.string();
    } else if (is_checkpoint_root((above / "checkpoints").string())) {
      root = (above / "checkpoints").string();
    }
    if (above == above.parent_path()) break;
  }
  if (!root.empty()) run_.emplace(root);
  parent_ = target.parent_path().string();
  name_ = target.filename().string();
}

void check_run_place(const std::string& directory) {
  for (fs::path at = resolved(directory);; at = at.parent_path()) {
    const std::string path = at.string();
    if (link_kind((at / kManifestName).string()) != PathKind::kAbsent)
      throw refusal(directory, "a run would spoil the checkpoint '" + path + "'");
    if (is_checkpoint_root(path)) throw refusal(directory, "'" + path + "' holds the checkpoints of another run");
    if (at == at.parent_path()) return;
  }
}

}  // namespace chassis
