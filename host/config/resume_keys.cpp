// The list of keys that a resumed run may change.
#include "host/config/resume_keys.hpp"

#include <algorithm>
#include <iterator>

namespace chassis {
namespace {

// Keys, and prefixes of keys, which end in a dot.
constexpr std::string_view kMayChange[] = {
    "run.name",      "run.output_dir", "run.max_steps",  "run.epochs", "run.resume", "run.strict",  "run.memory_check",
    "run.device",    "run.threads",    "schema_version", "plugins.",   "model.path", "model.init",  "data.cache_dir",
    "data.prefetch", "data.eval.",     "eval.",          "generate.",  "log.",       "checkpoint.", "export.",
    "comm.",         "mesh.",          "parallel.",      "recompute."};

}  // namespace

bool may_change_on_resume(std::string_view key) {
  // The path of data; its content is compared by hash.
  if (key.starts_with("data.train.") && key.ends_with(".path")) return true;
  return std::any_of(std::begin(kMayChange), std::end(kMayChange), [&](std::string_view known) {
    return known.ends_with('.') ? key.starts_with(known) : key == known;
  });
}

}  // namespace chassis
