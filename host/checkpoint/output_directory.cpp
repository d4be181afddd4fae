// Compares paths with all links resolved.
#include "host/checkpoint/output_directory.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/checkpoint/checkpoint_manifest.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxRunFileBytes = uint64_t{1} << 20;

// The absolute path, with links resolved as far as it exists, and without a "/" at the end.
fs::path resolved(const std::string& path) {
  std::error_code error;
  fs::path whole = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) throw storage_error("cannot access '" + path + "': " + error.message());
  return whole.has_filename() ? whole : whole.parent_path();
}

Error refusal(const std::string& directory, const std::string& why) {
  return storage_error("'" + directory + "' is not written: " + why).hint("choose another directory");
}

bool lies_below(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

// Whether a training run has written its run.json there, even if its checkpoints are gone.
bool has_run_file(const fs::path& folder) {
  const std::string path = (folder / "run.json").string();
  if (path_kind_nofollow(path) != PathKind::kFile) return false;
  const std::string text = read_file(path, kMaxRunFileBytes);
  const Json json = Json::parse(text, nullptr, false);
  return json.is_object() && json.contains("identity");
}

// The names that exports may have in a run directory.
bool is_export_name(const std::string& name) { return name == "final" || name.starts_with("export-"); }

// In a run directory, `target` must be an export, made from a checkpoint of the same run.
void check_place_in_run(const std::string& directory, const fs::path& target, const fs::path& run,
                        const std::vector<std::string>& sources) {
  const bool is_own = std::any_of(sources.begin(), sources.end(), [&](const std::string& source) {
    return !source.empty() && lies_below(resolved(source), run);
  });
  const bool is_export = target.parent_path() == run && is_export_name(target.filename().string());
  if (is_own && is_export) return;
  throw storage_error("'" + directory + "' is not written: it lies in the directory of " +
                      (is_own ? "the run '" : "another run, '") + run.string() + "'")
      .hint(is_own ? "choose a directory outside the run, or in it " + (run / "final").string() + " or " +
                         (run / "export-NAME").string()
                   : "choose a directory outside that run");
}

// Describes the checkpoint at the target, which will be replaced; empty if there is none.
std::string describe_target(const std::string& path) {
  if (path_kind_nofollow(path) != PathKind::kDirectory ||
      path_kind_nofollow(path + "/" + kManifestName) == PathKind::kAbsent)
    return "";
  try {
    SourceDirectory directory(path);
    const CheckpointManifest manifest = CheckpointManifest::read(directory);
    return "step " + std::to_string(manifest.step) + ", written " + printable(manifest.created);
  } catch (const DamagedCheckpoint&) {
    return "";  // check_replaceable() refuses it
  }
}

}  // namespace

OutputDirectory::OutputDirectory(const std::string& directory, const std::vector<std::string>& sources,
                                 bool becomes_resumable) {
  const fs::path target = resolved(directory);
  for (const std::string& source : sources)
    if (!source.empty() && resolved(source) == target) throw refusal(directory, "it is the directory that is read");
  std::string root;  // the checkpoints of the run that contains the target
  for (fs::path above = target.parent_path();; above = above.parent_path()) {
    if (path_kind_nofollow((above / kManifestName).string()) != PathKind::kAbsent)
      throw refusal(directory, "it lies inside the checkpoint '" + above.string() + "'");
    if (is_checkpoint_root(above.string())) {
      if (!becomes_resumable)
        throw refusal(directory, "it lies among the checkpoints of a run, in '" + above.string() + "'");
      root = above.string();
      break;
    }
    const bool has_checkpoints = is_checkpoint_root((above / "checkpoints").string());
    if (has_checkpoints || has_run_file(above)) {
      check_place_in_run(directory, target, above, sources);
      if (has_checkpoints) root = (above / "checkpoints").string();
      break;
    }
    if (above == above.parent_path()) break;
  }
  if (!root.empty()) run_.emplace(root);
  parent_ = target.parent_path().string();
  name_ = target.filename().string();
  replaced_ = describe_target(target.string());
}

void OutputDirectory::log_replaced() const {
  if (!replaced_.empty()) log::info("{}/{} replaced the old contents: {}", parent_, name_, replaced_);
}

void check_run_directory(const std::string& directory) {
  for (fs::path at = resolved(directory);; at = at.parent_path()) {
    const std::string path = at.string();
    if (path_kind_nofollow((at / kManifestName).string()) != PathKind::kAbsent)
      throw refusal(directory, "a run there would damage the checkpoint '" + path + "'");
    if (is_checkpoint_root(path)) throw refusal(directory, "'" + path + "' holds the checkpoints of another run");
    if (at == at.parent_path()) return;
  }
}

}  // namespace chassis
