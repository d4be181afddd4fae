// Resumes a run: chooses a checkpoint, and loads it.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/checkpoint/checksum.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/checkpoint/source_directory.hpp"
#include "host/save/component_load.hpp"
#include "host/save/load.hpp"
#include "host/save/quantized_load.hpp"
#include "host/save/resume_differences.hpp"
#include "host/save/saved_tensors.hpp"
#include "host/save/saver.hpp"
#include "host/save/weights.hpp"
#include "host/session/finite.hpp"

namespace chassis {
namespace {

// The checksum of the frozen parameters that this rank stores.
uint32_t checksum_of_frozen(const Session& session) {
  uint32_t crc = 0;
  for (const auto& p : session.parameters().all()) {
    if (is_kept(*p)) continue;
    for (const Tensor& stored : p->all_stored()) {
      if (stored.num_elements() == 0) continue;
      const Tensor here = stored.to(Device{}).contiguous();
      crc = crc32c(crc, here.data(), static_cast<size_t>(here.num_elements() * size_bytes(here.dtype())));
    }
  }
  return crc;
}

// The optimizer's states that have one value for each block, by FQN.
std::map<std::string_view, const OptimizerState*> states_of_blocks(Session& session) {
  std::map<std::string_view, const OptimizerState*> out;
  for (const OptimizerState& state : session.optimizer().states())
    if (state.shape == CHASSIS_STATE_PER_BLOCK) out.emplace(state.descriptor.fqn, &state);
  return out;
}

// Returns how this rank reads such a state. `descriptor` says which rank owns it.
LoadTensor load_state(const OptimizerState& state, const Descriptor& descriptor, const CheckpointReader& reader) {
  Descriptor parameter = state.parameter->descriptor;
  parameter.owner = descriptor.owner;
  parameter.owner_replica = descriptor.owner_replica;
  return load_component(reader, parameter, state.component, descriptor.fqn);
}

// `which`: the parameters that the checkpoint has. It also has the optimizer's states.
std::vector<LoadTensor> tensors_to_resume(Session& session, const CheckpointReader& reader, Which which) {
  refuse_components(session, reader, [](const Parameter& p) { return p.name; });
  const auto of_blocks = states_of_blocks(session);
  std::vector<LoadTensor> tensors;
  for (Descriptor& descriptor : training_tensors(session, true, which)) {
    const auto state = of_blocks.find(descriptor.fqn);
    if (state != of_blocks.end())
      tensors.push_back(load_state(*state->second, descriptor, reader));
    else
      tensors.push_back({std::move(descriptor), ""});
  }
  return tensors;
}

// Adds a hint if the optimizer's options differ from those of the checkpoint.
void explain_by_options(const Session& session, const std::string& path, Misfit& misfit) {
  std::string other;
  for (const ResumeDifference& d : settings_that_differ(path, "optimizer", session.config()))
    other += (other.empty() ? "" : "; ") + d.key + " " + d.text;
  if (!other.empty()) misfit.hint("states of the optimizer depend on its options: " + other);
}

}  // namespace

std::optional<Saver::Resumed> Saver::resume() {
  const ResumeFrom& wanted = session_.settings().run.resume;
  if (wanted == Resume::kNever) return std::nullopt;
  if (!wanted.word) {
    const std::string given = run_of(wanted.text);
    return load_checkpoint(is_run_directory(given) ? newest_of(given) : given);
  }
  std::optional<Resumed> resumed;
  std::vector<std::string> passed;
  const auto used = load_best(
      session_.world(), checkpoints(), [&](const std::string& path) { resumed = load_checkpoint(path); },
      [&](const CheckpointInfo& checkpoint, const std::string& why) {
        warn_skipped_checkpoint(checkpoint, why);
        passed.push_back(checkpoint.name);
      });
  if (used) set_aside_damaged(passed, used->name);
  return resumed;
}

// The newest checkpoint of a run, which may be this one. Loading it shows whether it is intact.
std::string Saver::newest_of(const std::string& run) const {
  return find_on_rank_0(session_.world(), "finding checkpoints", [&] {
    const auto newest = newest_checkpoint(run + "/checkpoints");
    if (!newest) throw no_checkpoint(run);
    return newest->path;
  });
}

// Renames the damaged checkpoints that were skipped, since the run will save these steps again.
void Saver::set_aside_damaged(const std::vector<std::string>& passed, const std::string& used) {
  session_.world().run_and_agree("setting damaged checkpoints aside", [&] {
    if (!root_ || passed.empty()) return;
    for (const std::string& name : passed)
      if (const std::string aside = root_->set_aside(name); !aside.empty())
        log::warn("{}/{} is kept as {}; delete it when you no longer need it", root_->path(), name, aside);
    root_->set_latest(used);
  });
}

Saver::Resumed Saver::load_checkpoint(const std::string& path) {
  World& world = session_.world();
  std::unique_ptr<CheckpointReader> reader;
  open_on_all_ranks(world, path, [&] { reader = open_checkpoint(path); });
  const std::optional<BaseReference> reference = base_reference(reader->manifest()->about, path);
  const bool refers = refers_to_base(session_);
  if (reference || refers) base_ = reference_to_base(load_base(session_, buckets_, path, reference));
  const uint32_t frozen = refers ? checksum_of_frozen(session_) : 0;

  LoadSource source{.reader = *reader, .tensors = {}};
  run_and_agree_on_damage(world, "loading " + path, [&] {
    source.tensors = tensors_to_resume(session_, *reader, reference ? Which::kKept : Which::kAll);
  });
  source.explain = [&](Misfit& misfit) { explain_by_options(session_, path, misfit); };
  const Loaded loaded = load_into(LoadState::of(session_, local_tensors(session_, true), buckets_), source);
  log::info("read {}: {}", path, loaded.read.text());
  session_.refresh_parameters();

  world.run_and_agree("comparing frozen weights with " + path, [&] {
    if (!refers || checksum_of_frozen(session_) == frozen) return;
    throw config_error(session_.settings().checkpoint.contents,
                       "checkpoint.contents = \"trained\" refers to the frozen weights in model.path = " +
                           *session_.settings().model.path + ", and those in " + path + " are others")
        .hint("continue with checkpoint.contents = \"full\"");
  });
  const std::string hint = hint_to_avoid(path, reader->manifest()->step);
  require_finite(session_.parameters(), session_.world(), "the parameters in " + path, hint);
  require_finite_states(session_.optimizer(), session_.world(), "the optimizer's states in " + path, hint);
  return {path, reader->manifest()->state};
}

std::unique_ptr<CheckpointReader> Saver::open_checkpoint(const std::string& path) {
  SourceDirectory directory(path);
  if (directory.find_file(kManifestName) < 0)
    throw storage_error(path + " is not a checkpoint: it has no " + kManifestName)
        .hint("run.resume takes a checkpoint as in checkpoints/; for weights only, set model.path");
  const CheckpointManifest manifest = CheckpointManifest::read(directory);
  const auto weights_only = [&] {
    const std::string start = session_.adapter() != nullptr && base_reference(manifest.about, path)
                                  ? "adapter.path = \"" + path + "\" with the same model.path"
                                  : "model.path = \"" + path + "\"";
    return storage_error(path + " holds only weights and cannot be resumed")
        .hint("start from it instead: " + start + ", run.resume = \"never\" and another run.output_dir");
  };
  if (!manifest.resumable) throw weights_only();
  const std::string& format_name = manifest.format;
  if (format_name != checkpoint_format_->name())
    throw storage_error(path + " is of format '" + format_name + "', [checkpoint] plugin is '" +
                        checkpoint_format_->name() + "'")
        .hint("set checkpoint.plugin = \"" + format_name + "\"");
  auto reader = std::make_unique<CheckpointReader>(path, *checkpoint_format_);
  if (!reader->manifest() || !reader->manifest()->resumable) throw weights_only();
  if (session_.world().rank() == 0) {
    compare_with_manifest(path, reader->manifest());
    require_same_optimizer(path, session_.settings().optimizer.plugin);
  }
  return reader;
}

// A hint for a checkpoint that is intact but whose values are not finite.
std::string Saver::hint_to_avoid(const std::string& path, int64_t step) const {
  std::string before;
  for (const CheckpointInfo& info : list_checkpoints(checkpoints()))
    if (info.step < step && info.resumable && !info.set_aside && info.defect.empty()) before = info.path;
  if (before.empty()) return "continue from a checkpoint before " + path + ", or from other weights";
  return "run.resume = \"" + before + "\" continues from an older one; a lower optimizer.lr may keep it finite";
}

}  // namespace chassis
