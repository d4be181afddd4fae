#include "host/train/run_directory.hpp"

#include <filesystem>

#include "host/base/file.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/service/device.hpp"

namespace chassis {
namespace {

void compare(const Json& before, const RunIdentity& now, const std::string& path, const Config& config) {
  auto differs = [&](const char* what, const std::string& was, const std::string& is) {
    if (was == is) return;
    throw Error(ExitCode::kConfig, config.position("run.output_dir"),
                "run.output_dir " + path + " holds another run: its " + what + " is " + was.substr(0, 12) +
                    ", this one's is " + is.substr(0, 12))
        .hint("choose another run.output_dir, or restore the " + std::string(what) + " of that run");
  };
  const std::string where = path + "/run.json";
  const Json& identity = json_at(before, "identity", where);
  differs("model", json_string(identity, "model", where), now.model);
  differs("data", json_string(identity, "data", where), now.data);
}

}  // namespace

void open_run_directory(const std::string& path, Session& session, const RunIdentity& identity) {
  const Config& config = session.config();
  const std::string run_file = path + "/run.json";
  const bool exists = std::filesystem::exists(run_file);
  create_directories(path);
  if (exists) {
    compare(parse_json(read_file(run_file), run_file), identity, path, config);
    if (config.get_string("run.resume") == "never" && newest_checkpoint(path + "/checkpoints"))
      throw Error(ExitCode::kConfig, config.position("run.resume"),
                  "run.resume = \"never\", but " + path + " has checkpoints that a new run would replace")
          .hint("use \"auto\" to go on, or another run.output_dir");
  }
  write_file_atomic(path + "/resolved.toml", config.resolved_toml());
  write_file_atomic(path + "/plugins.lock", session.registry().lock().dump(2) + "\n");
  const Json run = {{"name", config.get_string("run.name")},
                    {"version", CHASSIS_VERSION},
                    {"device", device_name(session.device())},
                    {"identity", {{"model", identity.model}, {"data", identity.data}}}};
  write_file_atomic(run_file, run.dump(2) + "\n");
}

}  // namespace chassis
